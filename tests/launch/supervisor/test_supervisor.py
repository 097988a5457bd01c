"""A supervisor and a fake Triton, with real processes and sockets and short timeouts."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.launch.supervising import QUICK, is_in, run_to_the_end, supervised
from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest
from trtllm_serve_cli.launch.server_state import PLAN_FILE, ServerState, read_state, write_state
from trtllm_serve_cli.launch.startup import read_starts
from trtllm_serve_cli.runtime.watch import hidden_argument
from trtllm_serve_cli.runtime.watch.hidden_argument import hide_in_command_line
from trtllm_serve_cli.stop_signal import StopSignal

pytestmark = pytest.mark.usefixtures("working_directory")

TOKEN = "restricted-secret"


def test_server_is_ready_once_it_generated_a_token(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        state = read_state(plan.directory)
        assert [state.server_pid] == pids_in(plan.log)
    last = read_state(plan.directory)
    assert last == dataclasses.replace(state, phase="stopped", server_pid=None)


def test_server_is_warmed_up_before_it_is_ready(tmp_path: Path) -> None:
    requests = (WarmupRequest("short prompt", "m", 2), WarmupRequest("other", "nope", 2))
    plan = dataclasses.replace(fake_plan(tmp_path), warmup=requests)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    (start,) = read_starts(plan.directory)
    assert [each.name for each in start.stages] == ["first token", "warm-up"]
    (problem,) = start.problems
    assert problem.startswith("warm-up request 'other': ")
    assert f"W supervisor] {problem}\n" in plan.log.read_text()


def test_engine_that_the_warm_up_breaks_is_not_ready(tmp_path: Path) -> None:
    requests = (WarmupRequest("short prompt", "m", 2),)
    plan = dataclasses.replace(fake_plan(tmp_path, "mute", timeout_s=6.0), warmup=requests)
    _, state = run_to_the_end(plan, dataclasses.replace(QUICK, probe_timeout_s=1.0))
    assert (state.phase, state.why[0]) == ("failed", "the server was not ready after 6 s")
    assert state.why[1].startswith("warm-up request 'short prompt': ")


def test_failed_start_is_explained_and_not_retried(tmp_path: Path) -> None:
    was_requested, state = run_to_the_end(fake_plan(tmp_path, "fail"))
    assert not was_requested
    assert (state.phase, state.restarts, state.server_pid, state.why) == (
        "failed", 0, None, ("m: Internal: ModuleNotFoundError: No module named 'nowhere'",),
    )  # fmt: skip


def test_signal_while_loading_is_reported(tmp_path: Path) -> None:
    _, state = run_to_the_end(fake_plan(tmp_path, "killed"))
    assert (state.phase, state.exit_code, state.why) == (
        "failed", -9, ("the server was terminated by signal 9",),
    )  # fmt: skip


def test_unexplained_failure_reports_the_exit_code(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), argv=(sys.executable, "-c", "exit(7)"))
    _, state = run_to_the_end(plan)
    assert (state.phase, state.exit_code, state.why) == (
        "failed", 7, ("the server ended with exit code 7",),
    )  # fmt: skip


@pytest.mark.parametrize("behaviour", ["closed", "silent"])
def test_start_times_out(tmp_path: Path, behaviour: str) -> None:
    _, state = run_to_the_end(fake_plan(tmp_path, behaviour, timeout_s=1.0))
    assert (state.phase, state.why) == ("failed", ("the server was not ready after 1 s",))


def test_missing_program_is_named(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), argv=("/no/such/tritonserver",))
    _, state = run_to_the_end(plan)
    assert (state.phase, state.why) == (
        "failed", ("/no/such/tritonserver could not be started: No such file or directory",),
    )  # fmt: skip


def test_server_survives_removal_of_its_log(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        (server,) = pids_in(plan.log)
        content = plan.log.read_text()
        plan.log.unlink()
        time.sleep(10 * QUICK.watch_s)
        assert not is_gone(server)
        plan.log.write_text(content)


@pytest.mark.parametrize("is_full", [False, True])
def test_long_log_is_rotated_or_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    def copy_some(source: Path, target: Path) -> None:
        target.write_text("a part of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = fake_plan(tmp_path)
    rotated = plan.log.with_suffix(".log.1")
    rotated.parent.mkdir(parents=True, exist_ok=True)
    rotated.write_text("earlier")
    if is_full:
        monkeypatch.setattr(shutil, "copyfile", copy_some)
    with supervised(plan, dataclasses.replace(QUICK, max_log_bytes=10_000)):
        wait_until(lambda: is_in(plan, "ready"))
        content = plan.log.read_text()
        with plan.log.open("a") as log:
            log.write("x" * 10_000 + "\nlast\n")
        kept = "last\n" if is_full else ""
        wait_until(lambda: plan.log.read_text() == kept)
        plan.log.write_text(content)
    copied = "earlier" if is_full else f"{content}{'x' * 10_000}\nlast\n"
    assert rotated.read_text() == copied
    assert not list(plan.directory.glob("*.part"))


def test_token_that_remains_visible_is_logged_once_and_hidden_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import time; print('log', flush=True); time.sleep(600)"
    plan = fake_plan(tmp_path)
    plan = dataclasses.replace(
        plan,
        argv=(sys.executable, "-c", script, TOKEN),
        endpoint=dataclasses.replace(plan.endpoint, restricted_token=TOKEN),
    )
    attempts, is_allowed = threading.Semaphore(0), threading.Event()

    def hide(pid: int, secret: str) -> None:
        attempts.release()
        if not is_allowed.is_set():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        hide_in_command_line(pid, secret)

    def command_line() -> bytes:
        return Path(f"/proc/{read_state(plan.directory).server_pid}/cmdline").read_bytes()

    monkeypatch.setattr(hidden_argument, "hide_in_command_line", hide)
    with supervised(plan):
        assert all(attempts.acquire(timeout=60) for _ in range(3))
        assert TOKEN.encode() in command_line()
        is_allowed.set()
        wait_until(lambda: TOKEN.encode() not in command_line())
    (line,) = [line for line in plan.log.read_text().splitlines() if "token" in line]
    assert line.startswith("W supervisor] the command line of process ")
    assert "shows other users the token" in line
    assert line.endswith(": Permission denied") and TOKEN not in line


@pytest.mark.parametrize("behaviour", ["closed", "silent"])
def test_stop_while_starting_does_not_wait_for_the_probe(tmp_path: Path, behaviour: str) -> None:
    plan = fake_plan(tmp_path, behaviour)
    with supervised(plan):
        wait_until(lambda: pids_in(plan.log))
    assert is_in(plan, "stopped")


@pytest.mark.parametrize("num_checks", [1, 2, 3])
def test_stop_at_any_time_of_a_failure_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_checks: int
) -> None:
    class StopAfterChecks(StopSignal):
        num_left = num_checks

        def is_set(self) -> bool:
            is_set = super().is_set()
            self.num_left -= 1
            if self.num_left == 0:
                self.set()
            return is_set

    monkeypatch.setattr("trtllm_serve_cli.launch.supervisor.supervisor.StopSignal", StopAfterChecks)
    was_requested, state = run_to_the_end(fake_plan(tmp_path, "closed", timeout_s=0.1))
    assert was_requested
    assert (state.phase, state.server_pid, state.why) == ("stopped", None, ())


def test_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "stubborn", "child")
    with supervised(plan, dataclasses.replace(QUICK, exit_s=0.5)):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_gone(pids_in(plan.log, "child")[0])


def test_server_is_killed_when_its_models_have_ended(tmp_path: Path) -> None:
    """Triton itself needs two more seconds to exit, in which it only waits for timers."""
    plan = fake_plan(tmp_path, "model", "linger")
    with supervised(plan, dataclasses.replace(QUICK, exit_s=600.0)):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")


def test_models_reject_requests_before_the_phase_is_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rejects = fake_plan(tmp_path), {}

    def write(directory: Path, state: ServerState) -> None:
        rejects[state.phase] = (directory / "draining" / "m").exists()
        write_state(directory, state)

    monkeypatch.setattr("trtllm_serve_cli.launch.supervisor.supervisor.write_state", write)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert rejects == {"starting": False, "ready": False, "stopping": True, "stopped": False}


def test_stop_waits_for_a_server_that_does_not_report_its_requests(tmp_path: Path) -> None:
    plan, limits = fake_plan(tmp_path), dataclasses.replace(QUICK, metrics_timeout_s=0.05)
    with socket.create_server(("127.0.0.1", plan.ports["metrics"])), supervised(plan, limits):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")
    assert read_state(plan.directory).why == (
        "requests were cancelled: an unknown number (the server does not respond)",
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    plan = fake_plan(tmp_path)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    command = (
        sys.executable,
        "-m",
        "trtllm_serve_cli.launch.supervisor",
        str(plan.directory),
    )
    with subprocess.Popen(command) as supervisor:
        wait_until(lambda: is_in(plan, "ready"))
        supervisor.send_signal(number)
    wait_until(lambda: is_gone(pids_in(plan.log)[0]))
    assert supervisor.returncode == (0 if number == signal.SIGTERM else -number)


def test_shared_memory_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    other = dataclasses.replace(
        plan, endpoint=dataclasses.replace(plan.endpoint, restricted_token="other")
    )
    regions = [Path(f"/dev/shm/{each.region_prefix}left") for each in (plan, other)]
    for region in regions:
        region.touch()
    try:
        with supervised(plan):
            wait_until(lambda: is_in(plan, "ready"))
        assert [region.exists() for region in regions] == [False, True]
    finally:
        regions[1].unlink()


def test_supervisor_does_not_import_the_planning_of_launches() -> None:
    code = "import sys, trtllm_serve_cli.launch.supervisor.supervisor; print(*sys.modules)"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    package = "trtllm_serve_cli"
    planning = {"launch.planning.server_plan", "launch.clusters.slurm", "sizing", "sources"}
    assert {f"{package}.{name}" for name in planning} & set(ran.stdout.split()) == set()
