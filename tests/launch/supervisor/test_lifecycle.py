"""Starts of servers with a fake Triton, in the background and in the foreground."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.launch.supervising import start
from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.errors import LaunchFailed
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    describe_supervisor,
    read_state,
    write_state,
)
from trtllm_serve_cli.launch.servers.running import find_running, list_servers, read_server
from trtllm_serve_cli.launch.supervisor import lifecycle
from trtllm_serve_cli.launch.supervisor.lifecycle import launch, run_in_foreground
from trtllm_serve_cli.launch.supervisor.ports import find_holder
from trtllm_serve_cli.launch.supervisor.reaper import list_session
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home

# Supervisors outlive the process that starts them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_launch_and_stop(home: Home) -> None:
    server = start(fake_plan(home.servers))
    assert (server.phase, find_running(home, "m")) == ("ready", server)
    stop_server(server)
    assert [is_gone(pid) for pid in pids_in(server.plan.log)] == [True]
    assert (list_servers(home), read_server(server.directory).phase) == ([], "stopped")


def test_start_removes_the_shared_memory_of_a_killed_server_on_the_same_port(home: Home) -> None:
    plan = fake_plan(home.servers)
    endpoint = dataclasses.replace(plan.endpoint, restricted_token="earlier")
    earlier = dataclasses.replace(plan, endpoint=endpoint)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(earlier.to_json())
    region = Path(f"/dev/shm/{earlier.region_prefix}left")
    region.touch()
    stop_server(start(plan))
    assert not region.exists()


def test_start_waits_for_the_processes_of_a_killed_supervisors_server(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    code = f"import socket; s = socket.create_server(('127.0.0.1', {plan.ports['HTTP']})); input()"
    command = (sys.executable, "-c", code)
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as earlier:
        wait_until(lambda: find_holder(plan.ports["HTTP"]) is not None)
        state = describe_supervisor("ready")
        died = dataclasses.replace(state, supervisor_started_at=0.0, server_pid=earlier.pid)
        write_state(plan.directory, died)

        def list_and_kill(sid: int) -> list[int]:
            pids = list_session(sid)
            earlier.kill()
            return pids

        monkeypatch.setattr(lifecycle, "list_session", list_and_kill)
        server = start(plan)
    assert server.phase == "ready"
    stop_server(server)


def test_folder_with_the_token_is_private(home: Home) -> None:
    server = start(fake_plan(home.servers))
    stop_server(server)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (server.directory, *server.directory.glob("[pr]*"))
    }
    assert modes == {
        server.directory.name: 0o700,
        "plan.json": 0o600,
        "pulses": 0o700,
        "restricted-api-token": 0o600,
    }
    assert (server.directory / "restricted-api-token").read_text() == "secret\n"


def test_backends_are_linked(home: Home, tmp_path: Path) -> None:
    links = {"backends/python/stub": str(tmp_path / "stub")}
    plan = dataclasses.replace(fake_plan(home.servers, "fail"), backends=links)
    for _ in range(2):
        with pytest.raises(LaunchFailed):
            start(plan)
    assert (plan.directory / "backends/python/stub").readlink() == tmp_path / "stub"


def test_progress_lists_models_still_loading(home: Home) -> None:
    reported: list[Sequence[str]] = []

    def interrupt(loading: Sequence[str]) -> None:
        reported.append(loading)
        if loading == ["n"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(fake_plan(home.servers, "silent"), on_progress=interrupt)
    assert set(map(tuple, reported)) <= {("m", "n"), ("n",)}


def test_interrupted_start_leaves_nothing_running(home: Home) -> None:
    plan = fake_plan(home.servers, "silent")

    def interrupt(loading: object) -> None:
        if pids_in(plan.log):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(plan, on_progress=interrupt)
    assert is_gone(pids_in(plan.log)[0])
    assert read_state(plan.directory).phase == "stopped"


def test_foreground_ends_with_the_server(home: Home) -> None:
    plan, ready = fake_plan(home.servers), threading.Event()

    def stop_it() -> None:
        ready.set()
        stop_server(read_server(plan.directory))

    run_in_foreground(plan, on_ready=stop_it)
    assert (ready.is_set(), is_gone(pids_in(plan.log)[0])) == (True, True)


def test_foreground_failure_is_explained(home: Home) -> None:
    with pytest.raises(LaunchFailed, match="No module named 'nowhere'"):
        run_in_foreground(fake_plan(home.servers, "fail"), on_ready=lambda: None)


def test_failure_of_a_foreground_server_that_was_ready_is_explained(home: Home) -> None:
    plan = fake_plan(home.servers)

    def fail() -> None:
        ready = read_state(plan.directory)
        stop_server(read_server(plan.directory))
        write_state(plan.directory, dataclasses.replace(ready, phase="failed", why=("no memory",)))

    with pytest.raises(LaunchFailed) as raised:
        run_in_foreground(plan, on_ready=fail)
    assert raised.value.what == "The server for m failed and did not become ready again."
    assert raised.value.why == "no memory"


def test_foreground_reports_a_supervisor_that_is_killed(home: Home) -> None:
    plan = fake_plan(home.servers)

    def kill() -> None:
        os.kill(read_state(plan.directory).supervisor_pid, signal.SIGKILL)

    with pytest.raises(LaunchFailed) as raised:
        run_in_foreground(plan, on_ready=kill)
    assert raised.value.what == "The server's supervisor exited while the server was running."
    assert raised.value.why == "it was terminated by signal 9"
    wait_until(lambda: is_gone(pids_in(plan.log)[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_server_ends_with_the_foreground_process(home: Home, number: signal.Signals) -> None:
    plan = fake_plan(home.servers)
    code = (
        "import sys\n"
        "from trtllm_serve_cli.launch.supervisor.lifecycle import run_in_foreground\n"
        "from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan\n"
        "plan = LaunchPlan.from_json(sys.argv[1])\n"
        "run_in_foreground(plan, on_ready=lambda: print('ready', flush=True))"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code, plan.to_json()),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline() == b"ready\n"
        attached.send_signal(number)
    wait_until(lambda: read_state(plan.directory).phase == "stopped")
    assert is_gone(pids_in(plan.log)[0])
