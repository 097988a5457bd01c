"""Tests of the commands `tllm load` and `unload` with a fake server that has a busy model."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import find_home

PAGE = 'nv_trt_llm_request_metrics{model="m",version="1",request_type="active"} 1\n'


@pytest.fixture
def busy(home_folder: Path) -> Iterator[LaunchPlan]:
    """Yield the plan of a server whose model never ends a request."""
    with FakeTriton(metrics_pages=[PAGE]) as triton:
        plan = fake_plan(find_home().servers)
        endpoint = dataclasses.replace(plan.endpoint, metrics=triton.endpoint.metrics)
        plan = dataclasses.replace(plan, endpoint=endpoint, model_control_mode="explicit")
        plan.directory.mkdir(parents=True)
        (plan.directory / PLAN_FILE).write_text(plan.to_json())
        write_state(plan.directory, describe_supervisor("ready"))
        yield plan


def test_unload_that_is_ended_leaves_no_model_refusing_requests(busy: LaunchPlan) -> None:
    mark = busy.directory / "draining" / "m"
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "unload", "m")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as unloading:
        wait_until(mark.exists)
        unloading.terminate()
        unloading.communicate()
    assert (unloading.returncode, mark.exists()) == (143, False)
