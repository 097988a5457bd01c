"""A model served by a real job of a real Slurm, followed and cancelled by `tllm`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import slurm
from tests.e2e.conftest import Tllm
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not() or "-"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("slurm")
    with slurm.run_cluster(root) as conf, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        yield conf


def jobs() -> list[str]:
    """The states of all jobs that Slurm still knows to wait or run."""
    command = ("squeue", "--noheader", "--format=%T")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def server(tllm: Tllm) -> dict[str, Any]:
    (only,) = json.loads(tllm.done("status", "--json"))["servers"]
    return dict(only)


def test_job_from_submission_to_stop(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    told = json.loads(tllm.done("deploy", "slurm", "-m", "demo", "--submit", "--json"))
    assert (told["job"], told["state"]) == ("1", "PENDING")
    wait_until(lambda: server(tllm)["state"] == "ready", timeout_s=120)
    status = server(tllm)
    assert status["job"] == {"id": "1", "state": "RUNNING", "reason": ""}
    assert status["models"] == ["demo"]
    assert "Paris" in tllm.done("infer", "The capital of France is", "--max-tokens", "5", "--raw")
    assert "successfully loaded 'tensorrt_llm'" in tllm.done("logs", "-n", "500")
    assert "tllm-demo" not in tllm.done("metrics", "--json")
    stopped = tllm("stop")
    assert stopped.stderr == "Stopping demo on Slurm job 1 …\nStopped.\n"
    assert jobs() == []
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}


def test_job_that_waits_says_why_and_can_be_stopped(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    tllm.done("deploy", "slurm", "-m", "demo", "--sbatch=--hold", "--submit")
    status = server(tllm)
    assert (status["state"], status["http"]) == ("queued", None)
    assert "JobHeldUser" in tllm.done("status")
    asked = tllm("infer", "Hello")
    assert asked.returncode == 3
    assert "The server for demo has no address yet." in asked.stderr
    assert "is PENDING (JobHeldUser)" in asked.stderr
    tllm.done("stop")
    assert jobs() == []


def test_refused_job_says_what_slurm_said(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    refused = tllm("deploy", "slurm", "-m", "demo", "--partition", "nowhere", "--submit")
    assert refused.returncode == 3
    assert "invalid partition specified: nowhere" in refused.stderr
    assert json.loads(tllm.done("status", "--json")) == {"servers": []}


def test_job_whose_server_fails_says_why(fresh_home: Callable[[], Tllm]) -> None:
    tllm = fresh_home()
    config = tllm.home / "models" / "demo" / "preprocessing" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "preprocessing"', 'name: "other"'))
    tllm.done("deploy", "slurm", "-m", "demo", "--submit")
    wait_until(lambda: server(tllm)["state"] == "failed", timeout_s=90)
    why = server(tllm)["why"]
    assert "is FAILED (NonZeroExitCode)" in why[0]
    assert any("preprocessing" in line for line in why[1:])
