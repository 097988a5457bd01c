"""Stops of servers with a fake Triton."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import filelock
import psutil
import pytest

from tests.fakes.container_engines import calls_of
from tests.launch.supervising import start, start_and_fail
from tests.samples.launch_plans import fake_container_plan, fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.errors import BadInput, LaunchFailed
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob
from trtllm_serve_cli.launch.server_state import (
    ServerState,
    describe_supervisor,
    read_state,
    request_stop,
    started_at_s,
    write_stop_timeout,
)
from trtllm_serve_cli.launch.servers.running import RunningServer, list_servers, read_server
from trtllm_serve_cli.launch.supervisor.stopping import remove_stale_container, stop_server
from trtllm_serve_cli.paths import Home

# Supervisors outlive the process that starts them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_stop_clears_a_failed_start(home: Home) -> None:
    plan = fake_plan(home.servers, "fail")
    start_and_fail(plan)
    (failed,) = list_servers(home)
    assert stop_server(failed) == ()
    assert list_servers(home) == [] and plan.log.exists()


def test_server_whose_supervisor_is_stopped_can_be_stopped(home: Home) -> None:
    server = start(fake_plan(home.servers))
    os.kill(server.state.supervisor_pid, signal.SIGSTOP)
    stop_server(server)
    assert read_state(server.directory).phase == "stopped"
    assert is_gone(pids_in(server.plan.log)[0])


def test_stop_ignores_a_reused_process_id(home: Home) -> None:
    """The supervisor's process ID now belongs to this process."""
    server = RunningServer(
        home.servers, fake_plan(home.servers), ServerState("ready", os.getpid(), 0.0)
    )
    stop_server(server)


def test_slurm_job_cannot_drain(home: Home) -> None:
    state = ServerState("ready", 0, 0.0)
    job = RunningServer(home.servers, fake_plan(home.servers), state, SlurmJob("12", "RUNNING"))
    with pytest.raises(BadInput) as raised:
        stop_server(job, 60)
    assert str(raised.value) == (
        "Slurm job 12 cannot be stopped gracefully.\n"
        "Why: Slurm ends all processes of a job at the same time, so requests in flight cannot "
        "finish\n"
        "Next: run `tllm stop -m m` without --timeout to cancel the job and its requests"
    )


def test_stop_uses_the_latest_stop_timeout(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), exit_timeout_s=0)
    plan.directory.mkdir(parents=True)
    write_stop_timeout(plan.directory, 600)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    command = (sys.executable, "-c", f"{code}; input()")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as draining:
        assert draining.stdin is not None and draining.stdout is not None
        draining.stdout.readline()
        state = dataclasses.replace(
            describe_supervisor("stopping"),
            supervisor_pid=draining.pid,
            supervisor_started_at=started_at_s(draining.pid),
        )
        polls: list[object] = []

        def end_at_the_third_poll(in_flight: object) -> None:
            polls.append(in_flight)
            if len(polls) == 3:
                draining.communicate("\n")

        server = RunningServer(plan.directory, plan, state)
        stop_server(server, on_progress=end_at_the_third_poll, ending_s=0.0)
    assert (len(polls), draining.returncode) == (3, 0)


def test_supervisor_that_does_not_respond_is_killed(home: Home) -> None:
    server = start(dataclasses.replace(fake_plan(home.servers), exit_timeout_s=0))
    processes = (server.state.supervisor_pid, server.state.server_pid)
    stop_again = partial(os.kill, server.state.supervisor_pid, signal.SIGSTOP)
    (why,) = stop_server(server, on_progress=lambda in_flight: stop_again(), ending_s=0.2)
    assert why.startswith("the supervisor did not respond and was killed")
    assert (list_servers(home), [is_gone(pid) for pid in processes]) == ([], [True, True])


def test_supervisor_is_killed_if_its_child_processes_cannot_be_listed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(process: psutil.Process, recursive: bool) -> None:
        raise psutil.AccessDenied(process.pid)

    server = start(dataclasses.replace(fake_plan(home.servers), exit_timeout_s=0))
    monkeypatch.setattr(psutil.Process, "children", fail)
    stop_again = partial(os.kill, server.state.supervisor_pid, signal.SIGSTOP)
    stop_server(server, on_progress=lambda in_flight: stop_again(), ending_s=0.2)
    assert (list_servers(home), is_gone(server.state.supervisor_pid)) == ([], True)
    wait_until(lambda: is_gone(server.state.server_pid))


def test_server_that_another_command_stops_is_not_started_again(home: Home) -> None:
    server = start(fake_plan(home.servers))
    with pytest.raises(LaunchFailed, match="The server for m was not restarted"):
        stop_server(server, is_restart=True, on_progress=lambda _: request_stop(server.directory))
    server = start(server.plan)
    assert stop_server(server, is_restart=True) == ()


def test_next_start_removes_a_stale_container(home: Home, podman: Path) -> None:
    plan = fake_container_plan(home.servers, podman)
    first = start(plan)
    for pid in (first.state.supervisor_pid, first.state.server_pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not read_server(plan.directory).is_running)
    # The fake Triton takes the place of the container, which uses the ports.
    wait_until(lambda: is_gone(pids_in(plan.log)[0]))
    before = len(calls_of(podman, "rm"))
    remove_stale_container(plan.directory)
    assert len(calls_of(podman, "rm")) == before + 1
    second = start(plan)
    remove_stale_container(plan.directory)
    assert second.phase == "ready"
    stop_server(second)


def test_container_is_not_removed_during_a_start(home: Home, podman: Path) -> None:
    plan = fake_container_plan(home.servers, podman)
    stop_server(start(plan))
    before = len(calls_of(podman, "rm"))
    with filelock.FileLock(plan.directory / "start.lock"):
        remove_stale_container(plan.directory)
    assert len(calls_of(podman, "rm")) == before
