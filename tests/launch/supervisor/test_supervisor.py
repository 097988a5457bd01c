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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fakes.container_engines import calls_of, write_engine
from tests.samples.launch_plans import fake_container_plan, fake_mpi_plan, fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest
from trtllm_serve_cli.launch.server_state import PLAN_FILE, ServerState, read_state, write_state
from trtllm_serve_cli.launch.startup import read_starts
from trtllm_serve_cli.launch.supervisor.restart_policy import RestartPolicy
from trtllm_serve_cli.launch.supervisor.supervisor import Supervisor, SupervisorLimits
from trtllm_serve_cli.runtime.watch import hidden_argument
from trtllm_serve_cli.runtime.watch.hidden_argument import hide_in_command_line

TOKEN = "restricted-secret"
QUICK_RESTARTS = RestartPolicy(first_pause_s=0.02, max_pause_s=0.04, max_failed_starts=3)
QUICK = SupervisorLimits(poll_s=0.02, watch_s=0.02, restarts=QUICK_RESTARTS)
WITH_LONG_PAUSES = dataclasses.replace(
    QUICK, restarts=RestartPolicy(first_pause_s=3600.0, max_pause_s=3600.0)
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the folder in which the fake Triton records its runs."""
    monkeypatch.chdir(tmp_path)


@contextmanager
def supervised(plan: LaunchPlan, limits: SupervisorLimits = QUICK) -> Iterator[Supervisor]:
    """Run a supervisor; assert that none of its servers is left at the end."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(plan, limits)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(60)
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []


def run_to_the_end(plan: LaunchPlan, limits: SupervisorLimits = QUICK) -> tuple[bool, ServerState]:
    plan.directory.mkdir(parents=True)
    was_requested = Supervisor(plan, limits).run()
    state = read_state(plan.directory)
    assert state is not None
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []
    return was_requested, state


def is_in(plan: LaunchPlan, phase: str, restarts: int = 0) -> bool:
    state = read_state(plan.directory)
    return state is not None and (state.phase, state.restarts) == (phase, restarts)


def crash(plan: LaunchPlan) -> None:
    with pytest.raises(NoServer):
        generate(plan.endpoint, "m", GenerateRequest("crash"), "http")


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


def test_children_of_a_crashed_server_are_killed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash", "child")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert is_gone(pids_in(plan.log, "child")[0])
    assert all(is_gone(pid) for pid in pids_in(plan.log, "child"))


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


@pytest.mark.parametrize("behaviour", ["closed", "silent"])
def test_stop_while_starting_does_not_wait_for_the_probe(tmp_path: Path, behaviour: str) -> None:
    plan = fake_plan(tmp_path, behaviour)
    with supervised(plan):
        wait_until(lambda: pids_in(plan.log))
    assert is_in(plan, "stopped")


def test_stop_during_the_restart_backoff(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan, WITH_LONG_PAUSES):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
    assert is_in(plan, "stopped", restarts=1)


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


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return write_engine(tmp_path / "bin", "podman")


def test_container_is_removed_before_and_after_each_run(tmp_path: Path, podman: Path) -> None:
    plan = fake_container_plan(tmp_path, podman, "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 11",)
    lines = podman.with_name("podman.calls").read_text().splitlines()
    commands = [line.split()[0] for line in lines if not line.startswith("inspect")]
    assert commands == ["rm", "run", "rm", "rm", "run", "rm"]
    assert set(calls_of(podman, "rm")) == {f"rm --force --time=0 --ignore {plan.container.name}"}


def test_server_is_starting_while_an_old_container_is_removed(tmp_path: Path, podman: Path) -> None:
    plan, release = fake_container_plan(tmp_path, podman), tmp_path / "may-go"
    waits = f"while [ ! -e {release} ]; do sleep 0.05; done"
    write_engine(podman.parent, "podman", rm=waits)
    with supervised(plan) as supervisor:
        wait_until(lambda: is_in(plan, "starting"))
        assert read_state(plan.directory).server_pid is None
        supervisor.stop()
        release.touch()
    assert is_in(plan, "stopped")


def test_exit_code_above_128_of_a_container_is_a_signal(tmp_path: Path, podman: Path) -> None:
    """The attached client exits with 128 plus the number of the signal."""
    write_engine(podman.parent, "podman", run='shift 4; "$@"; exit $((128 + 9))')
    plan = fake_container_plan(tmp_path, podman, "brief")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 9",)


def test_model_that_ends_with_its_container_is_not_blamed(tmp_path: Path, podman: Path) -> None:
    """All processes in the container end before the attached client reports the exit code."""
    run = (
        'while [ "$1" != img ]; do shift; done; shift; "$@" & echo $! > "$0.pid"; '
        "wait $!; sleep 1; exit 137"
    )
    write_engine(podman.parent, "podman", run=run, inspect='cat "$0.pid"')
    plan = fake_container_plan(tmp_path, podman, "model")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        for what in ("server", "model"):
            os.kill(pids_in(plan.log, what)[0], signal.SIGKILL)
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server was terminated by signal 9",)


def test_attached_client_forwards_the_stop_to_the_container(tmp_path: Path, podman: Path) -> None:
    plan = fake_container_plan(tmp_path, podman)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")


def test_process_in_the_container_is_recorded_before_the_server_is_ready(
    tmp_path: Path, podman: Path
) -> None:
    """The gateway connects to the engine worker of this process."""
    run = 'while [ "$1" != img ]; do shift; done; shift; "$@" & echo $! > "$0.pid"; wait $!'
    write_engine(podman.parent, "podman", run=run, inspect='cat "$0.pid"')
    plan = fake_container_plan(tmp_path, podman, "silent")
    with supervised(plan):
        wait_until(lambda: pids_in(plan.log))
        wait_until(lambda: [read_state(plan.directory).server_pid] == pids_in(plan.log))
        assert is_in(plan, "starting")


def test_container_engine_is_queried_only_until_it_reports_the_process(
    tmp_path: Path, podman: Path
) -> None:
    # exec replaces the fake podman by the fake Triton.
    write_engine(podman.parent, "podman", run='echo $$ > "$0.pid"; shift 4; exec "$@"',
                 inspect='cat "$0.pid"')  # fmt: skip
    plan = dataclasses.replace(
        fake_container_plan(tmp_path, podman, "crash"), model_control_mode="explicit"
    )
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        assert [read_state(plan.directory).server_pid] == pids_in(plan.log)
        num_queries = len(calls_of(podman, "inspect"))
        time.sleep(10 * QUICK.watch_s)
        assert len(calls_of(podman, "inspect")) == num_queries
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).server_pid == pids_in(plan.log)[-1]


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)


@needs_mpirun
def test_ranks_become_ready_together_and_stop_gracefully(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        ranks = find_ranks(plan)
        assert sorted(ranks) == ["0", "1"]
    # On SIGTERM, mpirun would log that it kills its ranks.
    assert (is_in(plan, "stopped"), "mpirun" in plan.log.read_text()) == (True, False)
    assert all(is_gone(each.pid) for each in ranks.values())


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_that_lost_a_rank_is_restarted(tmp_path: Path, number: signal.Signals) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        before = find_ranks(plan)
        before["1"].send_signal(number)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        why = read_state(plan.directory).why
        assert len(find_ranks(plan)) == 2
    assert f"rank 1 (process {before['1'].pid}) died" in why
    assert is_gone(before["0"].pid)


@needs_mpirun
def test_ranks_of_a_killed_mpirun_are_killed(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path, "child")
    # `mpirun` also waits for the children, which keep their ranks' output open.
    with supervised(plan, dataclasses.replace(QUICK, exit_s=1)):
        wait_until(lambda: is_in(plan, "ready"))
        mpirun = psutil.Process(read_state(plan.directory).server_pid)
        processes = mpirun.children(recursive=True)
        assert len(processes) == 4
        mpirun.kill()
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert all(is_gone(each.pid) for each in processes)


@needs_mpirun
def test_ranks_die_with_their_supervisor(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path)
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
        ranks = find_ranks(plan)
        supervisor.kill()
    wait_until(lambda: all(is_gone(each.pid) for each in ranks.values()))


def find_ranks(plan: LaunchPlan) -> dict[str, psutil.Process]:
    """Find the ranks' processes; in the log, mpirun may join lines of two ranks."""
    mpirun = psutil.Process(read_state(plan.directory).server_pid)
    return {each.environ()["OMPI_COMM_WORLD_RANK"]: each for each in mpirun.children()}


def test_supervisor_does_not_import_the_planning_of_launches() -> None:
    code = "import sys, trtllm_serve_cli.launch.supervisor.supervisor; print(*sys.modules)"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    package = "trtllm_serve_cli"
    planning = {"launch.planning.server_plan", "launch.clusters.slurm", "sizing", "sources"}
    assert {f"{package}.{name}" for name in planning} & set(ran.stdout.split()) == set()
