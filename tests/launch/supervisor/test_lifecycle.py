"""Starts and stops of servers with a fake Triton."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import filelock
import psutil
import pytest

from tests.fakes.container_engines import calls_of
from tests.fakes.container_engines import write_engine as write_container_engine
from tests.ports import free_ports
from tests.samples.launch_plans import fake_container_plan, fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.errors import BadInput, LaunchFailed
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    ServerState,
    describe_supervisor,
    read_state,
    request_stop,
    started_at_s,
    write_state,
    write_stop_timeout,
)
from trtllm_serve_cli.launch.servers.running import (
    RunningServer,
    find_running,
    list_servers,
    read_server,
)
from trtllm_serve_cli.launch.supervisor.lifecycle import (
    launch,
    run_in_foreground,
)
from trtllm_serve_cli.launch.supervisor.stopping import remove_stale_container, stop_server
from trtllm_serve_cli.paths import Home

# Supervisors outlive the process that starts them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def start(plan: LaunchPlan) -> RunningServer:
    return launch(plan, on_progress=lambda loading: None)


def start_and_fail(plan: LaunchPlan) -> None:
    with pytest.raises(LaunchFailed):
        start(plan)


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


def test_failed_start_shows_the_cause_and_leaves_nothing_running(home: Home) -> None:
    plan = fake_plan(home.servers, "fail", "child")
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert str(raised.value) == (
        "The server for m did not become ready.\n"
        "Why: m: Internal: ModuleNotFoundError: No module named 'nowhere'\n"
        "Next: run `tllm validate --repo /models/m` to check the model repository, `tllm export "
        "--repo /models/m > m.yaml && tllm import -f m.yaml --force` to rebuild the engine, "
        f"or `tllm doctor` to check this machine; the full log is {plan.log}"
    )
    assert all(is_gone(pid) for what in ("server", "child") for pid in pids_in(plan.log, what))


def test_stop_clears_a_failed_start(home: Home) -> None:
    plan = fake_plan(home.servers, "fail")
    start_and_fail(plan)
    (failed,) = list_servers(home)
    assert stop_server(failed) == ()
    assert list_servers(home) == [] and plan.log.exists()


def test_progress_lists_models_still_loading(home: Home) -> None:
    reported: list[Sequence[str]] = []

    def interrupt(loading: Sequence[str]) -> None:
        reported.append(loading)
        if loading == ["n"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(fake_plan(home.servers, "silent"), on_progress=interrupt)
    assert set(map(tuple, reported)) <= {("m", "n"), ("n",)}


def test_incompatible_engine_is_explained(home: Home) -> None:
    plan = fake_plan(home.servers, "misfit")
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why.endswith(
        "\n       cause: the engine was built with a different TensorRT version, or "
        "for a different kind of GPU"
    )
    assert raised.value.next_step == (
        "build the engine with --force on the same kind of GPU and in the same container as the "
        f"server; the full log is {plan.log}"
    )


def test_start_that_takes_too_long_suggests_a_longer_time_limit(home: Home) -> None:
    plan = fake_plan(home.servers, "closed", timeout_s=0.5)
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why.startswith("the server was not ready after 0.5 s")
    assert raised.value.next_step == (
        f"allow more time, for example with --timeout 1; the full log is {plan.log}"
    )


def test_gateway_that_ends_suggests_its_log(home: Home) -> None:
    plan = fake_plan(home.servers, "silent")
    config = GatewayConfig(
        (ServedModel("m", "m", plan.endpoint),),
        port=free_ports(1)[0],
        tls_certificate="/missing/cert.pem",
        tls_key="/missing/key.pem",
    )
    with pytest.raises(LaunchFailed) as raised:
        start(dataclasses.replace(plan, gateway=config))
    assert raised.value.why.startswith("the OpenAI-compatible gateway ended with exit code ")
    assert raised.value.next_step == (
        f"read the gateway's log ({plan.gateway_log}), or add --no-openai to start without the "
        "gateway; "
        f"the full log is {plan.log}"
    )


def test_unknown_failure_suggests_the_log_and_the_machine(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), argv=("sh", "-c", "exit 3"))
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why == "the server ended with exit code 3"
    assert raised.value.next_step == (
        "search the log for the first error, and check this machine with `tllm doctor`; the full "
        f"log is {plan.log}"
    )


def test_program_that_cannot_be_started_suggests_the_machine(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), argv=("/missing/tritonserver",))
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why == (
        "/missing/tritonserver could not be started: No such file or directory"
    )
    assert raised.value.next_step == (
        f"check this machine with `tllm doctor`; the full log is {plan.log}"
    )


def test_killed_server_is_explained(home: Home) -> None:
    plan = fake_plan(home.servers, "killed")
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert raised.value.why == (
        "the server was terminated by signal 9\n"
        "       cause: the process was killed, probably because the machine ran out of "
        "memory"
    )


def test_interrupted_start_leaves_nothing_running(home: Home) -> None:
    plan = fake_plan(home.servers, "silent")

    def interrupt(loading: object) -> None:
        if pids_in(plan.log):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(plan, on_progress=interrupt)
    assert is_gone(pids_in(plan.log)[0])
    assert read_state(plan.directory).phase == "stopped"


def test_server_whose_supervisor_is_stopped_can_be_stopped(home: Home) -> None:
    server = start(fake_plan(home.servers))
    os.kill(server.state.supervisor_pid, signal.SIGSTOP)
    stop_server(server)
    assert read_state(server.directory).phase == "stopped"
    assert is_gone(pids_in(server.plan.log)[0])


def test_crashed_supervisor_is_reported(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), timeout_s="soon")  # type: ignore[arg-type]
    with pytest.raises(
        LaunchFailed, match="supervisor exited before the server was ready"
    ) as raised:
        start(plan)
    assert "TypeError" in raised.value.why


def test_port_in_use_error_names_the_process(home: Home) -> None:
    server = start(fake_plan(home.servers))
    other = dataclasses.replace(server.plan, directory=fake_plan(home.servers).directory)
    try:
        with pytest.raises(
            LaunchFailed, match=r"is in use.*\n.*\(pid \d+\) is listening on this port"
        ):
            start(other)
    finally:
        stop_server(server)


def test_running_server_is_not_started_twice(home: Home) -> None:
    server = start(fake_plan(home.servers))
    http, pid = server.endpoint.http, server.state.supervisor_pid
    try:
        with pytest.raises(LaunchFailed) as raised:
            start(server.plan)
        assert str(raised.value) == (
            f"A server with HTTP port {server.plan.ports['HTTP']} already exists.\n"
            f"Why: the server for m is ready, and its supervisor has process ID {pid}\n"
            f"Next: run `tllm infer` to use the server, run `tllm restart -u {http}` to apply "
            "changes, or choose another port with --http-port N"
        )
        with pytest.raises(LaunchFailed) as raised:
            start(dataclasses.replace(server.plan, models=("other",)))
        assert raised.value.next_step == (
            f"run `tllm stop -u {http}`, or choose another port with --http-port N"
        )
    finally:
        stop_server(server)


def test_gateway_port_is_checked_on_the_address_of_the_gateway(home: Home) -> None:
    (port,) = free_ports(1)
    gateway = GatewayConfig(models=(), host="203.0.113.7", port=port)
    with pytest.raises(BadInput) as raised:
        start(dataclasses.replace(fake_plan(home.servers), gateway=gateway))
    assert raised.value.what == (f"The server cannot listen on 203.0.113.7:{port}.")
    assert raised.value.next_step == "pass an address of this machine with --openai-host ADDRESS"


def test_starting_server_is_not_started_twice(home: Home) -> None:
    plan = fake_plan(home.servers, "closed")
    first = threading.Thread(target=start_and_fail, args=(plan,))
    first.start()
    wait_until(lambda: pids_in(plan.log) and read_state(plan.directory))
    with pytest.raises(LaunchFailed, match=r"A server with HTTP port \d+ already exists") as raised:
        start(plan)
    assert raised.value.why.startswith("the server for m is starting, and its supervisor has ")
    stop_server(read_server(plan.directory))
    first.join()
    assert is_gone(pids_in(plan.log)[0])


def test_server_without_a_state_is_not_started_twice(home: Home) -> None:
    """The start lock is held before the supervisor writes a state."""
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    with (
        filelock.FileLock(plan.directory / "start.lock"),
        pytest.raises(LaunchFailed, match=r"A server with HTTP port \d+ already exists") as raised,
    ):
        start(plan)
    assert raised.value.why == "another tllm process is starting the server"


def test_of_two_starts_at_the_same_time_the_second_one_is_refused(home: Home) -> None:
    """The first server has a plan, but its supervisor has not written a state yet."""
    first, second = fake_plan(home.servers), fake_plan(home.servers)
    shared = dataclasses.replace(second.endpoint, metrics=first.endpoint.metrics)
    first.directory.mkdir(parents=True)
    (first.directory / PLAN_FILE).write_text(first.to_json())
    with filelock.FileLock(first.directory / "start.lock"):
        with pytest.raises(LaunchFailed, match=r"The metrics port \d+ is reserved") as raised:
            start(dataclasses.replace(second, endpoint=shared))
        assert raised.value.why == ("the server for m, which is starting, will listen on this port")
    assert not second.directory.exists()


def test_port_of_a_loading_server_is_reserved(home: Home) -> None:
    """Otherwise both would load, and one would fail minutes later."""
    first, second = fake_plan(home.servers), fake_plan(home.servers)
    second = dataclasses.replace(
        second, endpoint=dataclasses.replace(second.endpoint, grpc=first.endpoint.grpc)
    )
    first.directory.mkdir(parents=True)
    (first.directory / "plan.json").write_text(first.to_json())
    write_state(first.directory, describe_supervisor("starting"))
    with pytest.raises(LaunchFailed) as raised:
        start(second)
    assert str(raised.value) == (
        f"The gRPC port {first.ports['gRPC']} is reserved.\n"
        "Why: the server for m, which is starting, will listen on this port\n"
        "Next: choose another port with --grpc-port N"
    )


def test_restarting_server_is_not_started_twice(home: Home) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    write_state(plan.directory, describe_supervisor("restarting"))
    with pytest.raises(LaunchFailed, match=r"A server with HTTP port \d+ already exists") as raised:
        start(plan)
    assert raised.value.why == (
        f"the server is restarting, and its supervisor has process ID {os.getpid()}"
    )
    with filelock.FileLock(plan.directory / "start.lock", timeout=0):
        pass


def test_folder_of_another_machines_server_is_kept(home: Home) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    other = dataclasses.replace(describe_supervisor("ready"), boot_id="another", host="node-a")
    write_state(plan.directory, other)
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert str(raised.value) == (
        f"A server with HTTP port {plan.ports['HTTP']} may be running on node-a.\n"
        f"Why: both servers would use the shared folder {plan.directory}\n"
        "Next: run `tllm stop` on node-a, choose another port with --http-port N, or run "
        f"`rm -r {plan.directory}` if node-a no longer exists"
    )
    assert read_state(plan.directory) == other


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


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return write_container_engine(tmp_path / "bin", "podman")


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
