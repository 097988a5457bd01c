"""Starts that fail or are refused, with a fake Triton."""

from __future__ import annotations

import dataclasses
import os
import threading

import filelock
import pytest

from tests.launch.supervising import start, start_and_fail
from tests.ports import free_ports
from tests.samples.launch_plans import fake_plan, pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.errors import BadInput, LaunchFailed
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    describe_supervisor,
    read_state,
    write_state,
)
from trtllm_serve_cli.launch.servers.running import read_server
from trtllm_serve_cli.launch.supervisor import lifecycle
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home

# Supervisors outlive the process that starts them.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


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


def test_crashed_supervisor_is_reported(home: Home) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), timeout_s="soon")  # type: ignore[arg-type]
    with pytest.raises(
        LaunchFailed, match="supervisor exited before the server was ready"
    ) as raised:
        start(plan)
    assert "TypeError" in raised.value.why


def test_reason_is_given_if_the_state_cannot_be_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "read_state", lambda directory: None)
    with pytest.raises(LaunchFailed) as raised:
        start(fake_plan(home.servers, "killed"))
    assert raised.value.why == "it ended with exit code 1 without a readable state"


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


def test_requests_to_a_stopping_server_are_not_suggested(home: Home) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("stopping"))
    with pytest.raises(LaunchFailed, match="the server for m is stopping") as raised:
        start(plan)
    assert raised.value.next_step == (
        f"run `tllm stop -u {plan.endpoint.http}`, or choose another port with --http-port N"
    )


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


def test_folder_of_another_containers_server_is_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    other = dataclasses.replace(
        describe_supervisor("ready"), pid_namespace="other", host="node-a", server_pid=os.getsid(0)
    )
    write_state(plan.directory, other)
    # The process ID belongs to another process of this container, so do not wait for its end.
    monkeypatch.setattr(lifecycle, "list_session", None)
    monkeypatch.setattr("trtllm_serve_cli.launch.server_state._is_locked", lambda folder: True)
    with pytest.raises(LaunchFailed) as raised:
        start(plan)
    assert str(raised.value) == (
        f"A server with HTTP port {plan.ports['HTTP']} may be running in another container of this "
        "machine (host name node-a).\n"
        f"Why: both servers would use the shared folder {plan.directory}\n"
        "Next: run `tllm stop` in that container, or choose another port with --http-port N"
    )
    assert read_state(plan.directory) == dataclasses.replace(other, is_in_other_container=True)


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
