"""A supervisor and a fake Triton: real processes, real sockets, little patience."""

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
from trtllm_serve_cli.launch.server_state import PLAN_FILE, ServerState, read_state, write_state
from trtllm_serve_cli.launch.supervisor.supervisor import Patience, Supervisor

QUICK = Patience(poll_s=0.02, watch_s=0.02, first_backoff_s=0.02, longest_backoff_s=0.04)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which the fake Triton remembers its former lives."""
    monkeypatch.chdir(tmp_path)


@contextmanager
def supervised(plan: LaunchPlan, patience: Patience = QUICK) -> Iterator[Supervisor]:
    """A supervisor at work; no server of its is left at the end, which is asserted."""
    plan.directory.mkdir(parents=True)
    supervisor = Supervisor(plan, patience)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(60)
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []


def run_to_the_end(plan: LaunchPlan, patience: Patience = QUICK) -> tuple[bool, ServerState]:
    plan.directory.mkdir(parents=True)
    was_asked_to = Supervisor(plan, patience).run()
    state = read_state(plan.directory)
    assert state is not None
    assert [pid for pid in pids_in(plan.log) if not is_gone(pid)] == []
    return was_asked_to, state


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


def test_failed_start_says_why_and_is_not_tried_again(tmp_path: Path) -> None:
    was_asked_to, state = run_to_the_end(fake_plan(tmp_path, "fail"))
    assert not was_asked_to
    assert (state.phase, state.restarts, state.server_pid, state.why) == (
        "failed", 0, None, ("m: Internal: ModuleNotFoundError: No module named 'nowhere'",),
    )  # fmt: skip


def test_server_that_is_killed_while_it_loads_says_so(tmp_path: Path) -> None:
    _, state = run_to_the_end(fake_plan(tmp_path, "killed"))
    assert (state.phase, state.exit_code, state.why) == (
        "failed", -9, ("the server ended with signal 9",),
    )  # fmt: skip


def test_failed_start_that_nothing_explains_tells_the_exit_code(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), argv=(sys.executable, "-c", "exit(7)"))
    _, state = run_to_the_end(plan)
    assert (state.phase, state.exit_code, state.why) == (
        "failed", 7, ("the server ended with exit code 7",),
    )  # fmt: skip


@pytest.mark.parametrize("behaviour", ["closed", "silent"])
def test_server_that_never_gets_ready_is_given_up(tmp_path: Path, behaviour: str) -> None:
    _, state = run_to_the_end(fake_plan(tmp_path, behaviour, timeout_s=1.0))
    assert (state.phase, state.why) == ("failed", ("it was not ready after 1 s",))


def test_missing_program_fails_with_its_name(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), argv=("/no/such/tritonserver",))
    _, state = run_to_the_end(plan)
    assert (state.phase, state.why) == (
        "failed", ("/no/such/tritonserver does not start: No such file or directory",),
    )  # fmt: skip


def test_crashed_server_is_started_again(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).why == ("the server ended with signal 11",)
    assert len(pids_in(plan.log)) == 2


def test_server_outlives_its_log(tmp_path: Path) -> None:
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
def test_long_log_is_moved_aside_or_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    def copy_some(source: Path, target: Path) -> None:
        target.write_text("a part of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = fake_plan(tmp_path)
    aside = plan.log.with_suffix(".log.1")
    if is_full:
        monkeypatch.setattr(shutil, "copyfile", copy_some)
    with supervised(plan, dataclasses.replace(QUICK, max_log_bytes=10_000)):
        wait_until(lambda: is_in(plan, "ready"))
        content = plan.log.read_text()
        with plan.log.open("a") as log:
            log.write("x" * 10_000)
        wait_until(lambda: plan.log.stat().st_size == 0)
        plan.log.write_text(content)
    if is_full:
        assert not aside.exists()
    else:
        assert aside.read_text() == content + "x" * 10_000


def test_children_of_a_crashed_server_do_not_stay(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash", "child")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert is_gone(pids_in(plan.log, "child")[0])
    assert all(is_gone(pid) for pid in pids_in(plan.log, "child"))


def test_server_that_dies_too_often_is_given_up(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    was_asked_to, state = run_to_the_end(plan, dataclasses.replace(QUICK, max_restarts=2))
    assert (was_asked_to, state.phase, state.restarts) == (False, "failed", 2)
    assert state.why == ("the server ended with exit code 7",)
    assert len(pids_in(plan.log)) == 3


def test_deaths_after_a_good_time_do_not_add_up(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan, dataclasses.replace(QUICK, max_restarts=1, good_time_s=0.0)):
        wait_until(lambda: len(pids_in(plan.log)) > 3)


def test_cause_is_that_of_the_last_life(tmp_path: Path) -> None:
    """What a life before left in the log is not taken for it."""
    plan = fake_plan(tmp_path, "brief")
    plan.directory.mkdir(parents=True)
    plan.log.write_text("Error: of a life before\n")
    supervisor = Supervisor(plan, dataclasses.replace(QUICK, max_restarts=0))
    supervisor.run()
    assert read_state(plan.directory).why == ("the server ended with exit code 7",)


def test_restart_that_fails_keeps_trying_and_says_why(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "once", "crash")
    with supervised(plan, dataclasses.replace(QUICK, max_restarts=3)):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "failed", restarts=3))
    assert read_state(plan.directory).why == (
        "m: Internal: ModuleNotFoundError: No module named 'nowhere'",
    )


@pytest.mark.parametrize("behaviour", ["closed", "silent"])
def test_stop_while_starting_does_not_wait_for_an_answer(tmp_path: Path, behaviour: str) -> None:
    plan = fake_plan(tmp_path, behaviour)
    with supervised(plan):
        wait_until(lambda: pids_in(plan.log))
    assert is_in(plan, "stopped")


def test_stop_during_the_pause_before_a_restart(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "brief")
    with supervised(plan, dataclasses.replace(QUICK, first_backoff_s=600.0)):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
    assert is_in(plan, "stopped", restarts=1)


def test_server_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "stubborn", "child")
    with supervised(plan, dataclasses.replace(QUICK, exit_s=0.5)):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_gone(pids_in(plan.log, "child")[0])


def test_server_is_stopping_once_its_models_refuse_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, refuses = fake_plan(tmp_path), {}

    def write(directory: Path, state: ServerState) -> None:
        refuses[state.phase] = (directory / "draining" / "m").exists()
        write_state(directory, state)

    monkeypatch.setattr("trtllm_serve_cli.launch.supervisor.supervisor.write_state", write)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert refuses == {"starting": False, "ready": False, "stopping": True, "stopped": False}


def test_requests_of_a_server_too_busy_to_tell_of_them_are_waited_for(tmp_path: Path) -> None:
    plan, patience = fake_plan(tmp_path), dataclasses.replace(QUICK, metrics_timeout_s=0.05)
    with socket.create_server(("127.0.0.1", plan.ports["metrics"])), supervised(plan, patience):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")
    assert read_state(plan.directory).why == (
        "requests were cut off: an unknown number, since the server does not answer",
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
    port = plan.ports["HTTP"]
    regions = [Path(f"/dev/shm/tllm-{port}-left"), Path(f"/dev/shm/tllm-{port}0-other")]
    for region in regions:
        region.touch()
    try:
        with supervised(plan):
            wait_until(lambda: is_in(plan, "ready"))
        assert [region.exists() for region in regions] == [False, True]
    finally:
        regions[1].unlink()


def test_models_that_a_killed_supervisor_drained_take_requests_again(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, "crash")
    mark = plan.directory / "draining" / "m"
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert not mark.exists()


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return write_engine(tmp_path / "bin", "podman")


def test_container_is_cleared_away_before_and_after_each_life(tmp_path: Path, podman: Path) -> None:
    plan = fake_container_plan(tmp_path, podman, "crash")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).why == ("the server ended with signal 11",)
    lines = podman.with_name("podman.calls").read_text().splitlines()
    told = [line.split()[0] for line in lines if not line.startswith("inspect")]
    assert told == ["rm", "run", "rm", "rm", "run", "rm"]
    assert set(calls_of(podman, "rm")) == {f"rm --force --time=0 --ignore {plan.container.name}"}


def test_server_is_starting_while_a_former_container_is_cleared_away(
    tmp_path: Path, podman: Path
) -> None:
    plan, may_go = fake_container_plan(tmp_path, podman), tmp_path / "may-go"
    waits = f"while [ ! -e {may_go} ]; do sleep 0.05; done"
    write_engine(podman.parent, "podman", rm=waits)
    with supervised(plan) as supervisor:
        wait_until(lambda: is_in(plan, "starting"))
        assert read_state(plan.directory).server_pid is None
        supervisor.stop()
        may_go.touch()
    assert is_in(plan, "stopped")


def test_ending_of_a_container_is_told_as_a_shell_does(tmp_path: Path, podman: Path) -> None:
    """Whoever is attached to it ends with 128 and the signal that ended what ran in it."""
    write_engine(podman.parent, "podman", run='shift 4; "$@"; exit $((128 + 9))')
    plan = fake_container_plan(tmp_path, podman, "brief")
    with supervised(plan):
        wait_until(lambda: is_in(plan, "restarting", restarts=1))
        assert read_state(plan.directory).why == ("the server ended with signal 9",)


def test_model_that_goes_with_its_container_did_not_die_alone(tmp_path: Path, podman: Path) -> None:
    """All processes in it are gone before whoever is attached to it says how it ended."""
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
        assert read_state(plan.directory).why == ("the server ended with signal 9",)


def test_server_in_a_container_is_told_to_end_by_who_is_attached(
    tmp_path: Path, podman: Path
) -> None:
    plan = fake_container_plan(tmp_path, podman)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
    assert is_in(plan, "stopped")


def test_engine_of_containers_is_asked_once_in_each_life(tmp_path: Path, podman: Path) -> None:
    # The fake Triton is the process of the program in podman's place.
    write_engine(podman.parent, "podman", run='echo $$ > "$0.pid"; shift 4; exec "$@"',
                 inspect='cat "$0.pid"')  # fmt: skip
    plan = dataclasses.replace(
        fake_container_plan(tmp_path, podman, "crash"), model_control_mode="explicit"
    )
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        assert [read_state(plan.directory).server_pid] == pids_in(plan.log)
        time.sleep(10 * QUICK.watch_s)
        crash(plan)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert read_state(plan.directory).server_pid == pids_in(plan.log)[-1]
    assert len(calls_of(podman, "inspect")) == 2


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)


@needs_mpirun
def test_ranks_are_ready_together_and_end_in_order(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        ranks = find_ranks(plan)
        assert sorted(ranks) == ["0", "1"]
    # An mpirun that is told to end says that it kills its ranks.
    assert (is_in(plan, "stopped"), "mpirun" in plan.log.read_text()) == (True, False)
    assert all(is_gone(each.pid) for each in ranks.values())


@needs_mpirun
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_that_lost_a_rank_is_started_again(tmp_path: Path, number: signal.Signals) -> None:
    plan = fake_mpi_plan(tmp_path)
    with supervised(plan):
        wait_until(lambda: is_in(plan, "ready"))
        before = find_ranks(plan)
        before["1"].send_signal(number)
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        why = read_state(plan.directory).why
        assert len(find_ranks(plan)) == 2
    assert f"rank 1 died, which was process {before['1'].pid}" in why
    assert is_gone(before["0"].pid)


@needs_mpirun
def test_ranks_of_a_killed_mpirun_do_not_stay(tmp_path: Path) -> None:
    plan = fake_mpi_plan(tmp_path, "child")
    # At the end `mpirun` waits for the children, too, which hold their ranks' output.
    with supervised(plan, dataclasses.replace(QUICK, exit_s=1)):
        wait_until(lambda: is_in(plan, "ready"))
        mpirun = psutil.Process(read_state(plan.directory).server_pid)
        everything = mpirun.children(recursive=True)
        assert len(everything) == 4
        mpirun.kill()
        wait_until(lambda: is_in(plan, "ready", restarts=1))
        assert all(is_gone(each.pid) for each in everything)


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
    """By process: in the log, mpirun may run lines of two ranks together."""
    mpirun = psutil.Process(read_state(plan.directory).server_pid)
    return {each.environ()["OMPI_COMM_WORLD_RANK"]: each for each in mpirun.children()}
