"""The environment of a server process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.launch.supervisor.spawn import spawn_server

_VARIABLE = "OPENBLAS_NUM_THREADS"


@pytest.mark.parametrize(("own", "number"), [(None, "1"), ("4", "4")])
def test_numpy_of_a_server_has_one_thread_unless_the_user_sets_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, number: str
) -> None:
    monkeypatch.delenv(_VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(_VARIABLE, own)
    plan = dataclasses.replace(fake_plan(tmp_path), argv=("env",))
    plan.directory.mkdir()
    process, _ = spawn_server(plan)
    assert process.wait(60) == 0
    assert f"{_VARIABLE}={number}" in plan.log.read_text().splitlines()
