"""A supervisor that starts a failed server again."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.launch.supervising import WITH_LONG_PAUSES, crash, is_in, run_to_the_end, supervised
from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.server_state import read_state
from trtllm_serve_cli.launch.startup import read_starts
from trtllm_serve_cli.launch.supervisor.server_child import ServerChild

pytestmark = pytest.mark.usefixtures("working_directory")


def test_start_is_repeated_if_triton_cannot_lock_its_memory(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "unlockable-once")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert "W supervisor] Triton aborted while loading; starting it again\n" in plan.log.read_text()


def test_start_is_repeated_only_once(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "unlockable")
    _, state = run_to_the_end(plan)
    assert (state.phase, state.restarts, state.exit_code) == ("failed", 0, -signal.SIGABRT)
    assert state.why == ("the server was terminated by signal 6",)
    assert len(pids_in(plan.log)) == 2


def test_crashed_server_is_restarted(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        last, first = read_starts(plan.directory)
        assert (first.why, last.why) == ((), read_state(plan.directory).why)
        assert read_state(plan.directory).why == ("the server was terminated by signal 11",)
    assert len(pids_in(plan.log)) == 2


def test_children_of_a_crashed_server_are_killed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash", "child")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert is_gone(pids_in(plan.log, "child")[0])
    assert all(is_gone(pid) for pid in pids_in(plan.log, "child"))


def test_server_that_becomes_ready_is_always_restarted(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan):
        wait_until(lambda: len(pids_in(plan.log)) > 6)
    assert "W supervisor] the server failed; restarting it in 0.04 s" in plan.log.read_text()


def test_cause_comes_from_the_last_run(tmp_path: Path) -> None:
    """Errors of earlier runs in the log are ignored."""
    plan = fake_plan(tmp_path, "brief")
    plan.directory.mkdir(parents=True)
    plan.log.write_text("Error: of an earlier run\n")
    with supervised(plan, WITH_LONG_PAUSES):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server ended with exit code 7",)


def test_failed_restart_is_retried_and_explained(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "once", "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "failed", restarts=3))
    assert read_state(plan.directory).why == (
        "m: Internal: ModuleNotFoundError: No module named 'nowhere'",
    )


def test_stop_during_the_restart_backoff(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan, WITH_LONG_PAUSES):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
    assert is_in(plan, "stopped", restarts=1)
    assert read_state(plan.directory).why == ()


def test_backoff_does_not_depend_on_how_long_a_server_takes_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_s, remove_remains = [0.0], ServerChild.remove_remains

    def end_slowly(server: ServerChild, tree: list[psutil.Process]) -> None:
        remove_remains(server, tree)
        ended_s[0] += 3600.0

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ended_s[0], time=time.time)
    monkeypatch.setattr("trtllm_serve_cli.launch.supervisor.supervisor.time", clock)
    monkeypatch.setattr(ServerChild, "remove_remains", end_slowly)
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "restarting", restarts=2))
    assert "W supervisor] the server failed; restarting it in 0.04 s" in plan.log.read_text()


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash")
    scratch = plan.directory / "scratch"
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        (scratch / "tllm-lora-1").mkdir()
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert list(scratch.iterdir()) == []
    assert not scratch.exists()


def test_restart_clears_the_drain_markers_of_a_killed_supervisor(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash")
    marker = plan.directory / "draining" / "m"
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        marker.parent.mkdir(exist_ok=True)
        marker.touch()
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert not marker.exists()
