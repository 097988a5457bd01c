"""Searches for servers, and their phases."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples.launch_plans import fake_plan
from tests.samples.repositories import add_model
from tests.waiting import wait_until
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob
from trtllm_serve_cli.launch.planning.launch_plan import NO_ENDPOINT
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    ServerState,
    describe_supervisor,
    started_at_s,
    write_state,
)
from trtllm_serve_cli.launch.servers.running import (
    RunningServer,
    find_by_triton_model,
    find_logged,
    find_running,
    find_started,
    find_to_stop,
    list_servers,
    read_server,
)
from trtllm_serve_cli.paths import Home

ALIVE = describe_supervisor("ready")
GONE = dataclasses.replace(ALIVE, supervisor_started_at=0.0)
ELSEWHERE = dataclasses.replace(ALIVE, boot_id="another", host="node-a")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def add(home: Home, model: str, state: ServerState) -> RunningServer:
    plan = dataclasses.replace(fake_plan(home.servers), models=(model,))
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, state)
    return RunningServer(plan.directory, plan, state)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (ALIVE, "ready"),
        (dataclasses.replace(ALIVE, phase="restarting"), "restarting"),
        (GONE, "died"),
        (dataclasses.replace(GONE, phase="starting"), "died"),
        (dataclasses.replace(GONE, phase="failed"), "failed"),
        (dataclasses.replace(GONE, phase="stopped"), "stopped"),
    ],
)
def test_phase_considers_whether_the_supervisor_runs(
    home: Home, state: ServerState, phase: str
) -> None:
    assert add(home, "m", state).phase == phase


def test_server_whose_supervisor_is_stopped_is_unresponsive(home: Home) -> None:
    with subprocess.Popen(("sleep", "600")) as supervisor:
        try:
            state = dataclasses.replace(
                ALIVE,
                supervisor_pid=supervisor.pid,
                supervisor_started_at=started_at_s(supervisor.pid),
            )
            server = add(home, "m", state)
            assert server.phase == "ready"
            supervisor.send_signal(signal.SIGSTOP)
            wait_until(lambda: server.phase == "unresponsive")
            assert server.why == (
                "the server's supervisor is suspended; run "
                f"`kill -CONT {supervisor.pid}` to resume it",
            )
        finally:
            supervisor.kill()


def test_server_is_read_back(home: Home) -> None:
    server = add(home, "m", ALIVE)
    assert read_server(server.directory) == server


@pytest.mark.parametrize("name", ["plan.json", "state.json"])
def test_folder_without_a_server(home: Home, name: str) -> None:
    server = add(home, "m", ALIVE)
    (server.directory / name).write_text("{}")
    with pytest.raises(NoServer, match="does not contain a server") as caught:
        read_server(server.directory)
    assert caught.value.why == f"{name} is missing or cannot be read"
    assert list_servers(home) == []


def test_servers_are_listed_by_port_without_stopped_ones(home: Home) -> None:
    servers = [add(home, "a", ALIVE), add(home, "b", GONE)]
    add(home, "c", dataclasses.replace(GONE, phase="stopped"))
    assert list_servers(home) == sorted(servers, key=lambda server: server.plan.ports["HTTP"])


def test_no_server_was_ever_started(home: Home) -> None:
    assert list_servers(home) == []
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert str(raised.value) == "No server is running.\nNext: run `tllm import -m demo`"
    add_model(home, "b")
    with pytest.raises(NoServer, match=r"Next: run `tllm start`$"):
        find_running(home, None)
    add_model(home, "c")
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert raised.value.next_step == (
        "run `tllm start -m b`, or list the other models with `tllm list`"
    )


def test_stop_without_a_server_does_not_suggest_a_start(home: Home) -> None:
    with pytest.raises(NoServer) as raised:
        find_to_stop(home, None)
    assert str(raised.value) == "No server is running."
    with pytest.raises(NoServer, match="list the running servers"):
        find_to_stop(home, None, "127.0.0.1:9")


def test_only_running_server_is_found(home: Home) -> None:
    server = add(home, "a", ALIVE)
    add(home, "b", GONE)
    assert find_running(home, None) == find_running(home, "a") == server


def test_server_is_found_by_its_model(home: Home) -> None:
    _, server = add(home, "a", ALIVE), add(home, "b", ALIVE)
    assert find_running(home, "b") == server


def test_server_is_found_by_its_address(home: Home) -> None:
    """Two servers may serve the same model."""
    server, _ = add(home, "a", ALIVE), add(home, "a", ALIVE)
    assert find_running(home, None, server.endpoint.grpc) == server
    with pytest.raises(NoServer, match=r"is running on 127\.0\.0\.1:9"):
        find_running(home, None, "127.0.0.1:9")


def test_server_is_found_by_a_triton_model(home: Home) -> None:
    """The plan of each server has the Triton models m and n."""
    server = add(home, "a", ALIVE)
    add(home, "b", GONE)
    assert find_by_triton_model(home, "n") == server
    assert find_by_triton_model(home, "n", server.endpoint.http) == server
    assert find_by_triton_model(home, "n", "127.0.0.1:9") is None
    assert find_by_triton_model(home, "ensemble") is None


def test_imported_model_takes_precedence_over_a_triton_model(home: Home) -> None:
    add(home, "a", ALIVE)
    add(home, "n", ALIVE)
    assert find_by_triton_model(home, "n") is None


def test_triton_model_of_several_servers_is_ambiguous(home: Home) -> None:
    add(home, "a", ALIVE)
    add(home, "b", ALIVE)
    with pytest.raises(NoServer, match="2 servers are running"):
        find_by_triton_model(home, "n")


def test_several_running_servers_are_ambiguous(home: Home) -> None:
    servers = add(home, "a", ALIVE), add(home, "b", ALIVE)
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert raised.value.what == "2 servers are running."
    why, _, listed = raised.value.why.partition(": ")
    assert why == "the command applies to a single server, but several servers match"
    each = sorted(listed.split(", "))
    assert each == [f"{server.models[0]} on {server.endpoint.http}" for server in servers]
    assert raised.value.next_step == "select a server with -m NAME or -u HOST:PORT"


def test_servers_of_the_same_model_are_selected_by_address(home: Home) -> None:
    servers = add(home, "a", ALIVE), add(home, "a", ALIVE)
    with pytest.raises(NoServer) as raised:
        find_running(home, "a")
    option, _, address = raised.value.next_step.rpartition(" ")
    assert option == "select a server with -u HOST:PORT, for example -u"
    assert address in [server.endpoint.http for server in servers]


def test_model_without_a_server(home: Home) -> None:
    add(home, "a", ALIVE)
    with pytest.raises(NoServer) as raised:
        find_running(home, "b")
    assert str(raised.value) == (
        "No server is running for b.\n"
        "Why: no imported model and no model on a running server has this name\n"
        "Next: list the imported models with `tllm list`, or the models in the catalog with `tllm "
        "list --catalog`; import other models with `tllm import -m NAME -s SOURCE`"
    )
    with pytest.raises(NoServer) as raised:
        find_to_stop(home, "b")
    assert raised.value.next_step == "run `tllm status` to list the servers"
    with pytest.raises(NoServer, match=r"No server is running for b at 127\.0\.0\.1:9\."):
        find_to_stop(home, "b", "127.0.0.1:9")
    add_model(home, "b")
    with pytest.raises(NoServer) as raised:
        find_running(home, "b")
    assert str(raised.value) == "No server is running for b.\nNext: run `tllm start -m b`"


@pytest.mark.parametrize(("why", "reason"), [((), "no reason was recorded"), (("a", "b"), "a; b")])
def test_error_explains_why_a_server_failed(home: Home, why: tuple[str, ...], reason: str) -> None:
    server = add(home, "a", dataclasses.replace(GONE, phase="failed", why=why))
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert str(raised.value) == (
        f"The server for a is no longer running.\nWhy: {reason}\n"
        f"Next: read the log ({server.plan.log}), then run "
        f"`tllm restart -u {server.endpoint.http}`"
    )


def add_job(home: Home, model: str, job: SlurmJob, *why: str) -> RunningServer:
    """Add a submitted job, whose state `squeue` would report."""
    plan = dataclasses.replace(
        fake_plan(home.servers), models=(model,), text_models=(model,), endpoint=NO_ENDPOINT
    )
    plan.directory.mkdir(parents=True)
    state = ServerState("failed" if job.is_over else "unknown", 0, 0.0, why=why)
    return RunningServer(plan.directory, plan, state, job)


@pytest.fixture
def listed(home: Home, monkeypatch: pytest.MonkeyPatch) -> list[RunningServer]:
    """Replace the list of servers, which may include jobs, without Slurm."""
    servers: list[RunningServer] = []
    monkeypatch.setattr(
        "trtllm_serve_cli.launch.servers.running.list_servers", lambda home: servers
    )
    return servers


UNKNOWN, FAILED = SlurmJob("12"), SlurmJob("12", "FAILED")


def test_job_in_an_unknown_state_is_neither_running_nor_over(
    home: Home, listed: list[RunningServer]
) -> None:
    job = add_job(
        home, "a", UNKNOWN, "Slurm job 12: Slurm did not report the job state.", "no route"
    )
    listed.append(job)
    assert (job.is_running, job.is_over) == (False, False)
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert str(raised.value) == (
        "The state of the server for a is unknown.\n"
        "Why: Slurm job 12: Slurm did not report the job state.; no route\n"
        "Next: run `sinfo` to check whether Slurm's controller responds, then run `tllm status`"
    )
    assert find_to_stop(home, None) == [job]


def test_running_server_wins_over_one_in_an_unknown_state(
    home: Home, listed: list[RunningServer]
) -> None:
    server = add(home, "a", ALIVE)
    listed += [server, add_job(home, "b", UNKNOWN, "?")]
    assert find_running(home, None) == server
    with pytest.raises(NoServer, match="2 servers may be running"):
        find_to_stop(home, None)
    assert find_to_stop(home, "a") == [server]


def test_ended_servers_are_found_to_stop(home: Home, listed: list[RunningServer]) -> None:
    ended = [add_job(home, "a", FAILED, "FAILED"), add_job(home, "b", FAILED, "FAILED")]
    ended.append(add(home, "c", GONE))
    listed += ended
    assert find_to_stop(home, None) == ended
    server = add(home, "d", ALIVE)
    listed.append(server)
    assert find_to_stop(home, None) == [server]
    assert find_to_stop(home, None, everything=True) == [server, *ended]
    with pytest.raises(NoServer) as raised:
        find_running(home, "a")
    assert raised.value.next_step.endswith("then run `tllm deploy slurm -m a --submit`")
    assert find_to_stop(home, "c") == ended[2:]


def test_text_model_is_the_name_in_triton(home: Home) -> None:
    plan = dataclasses.replace(
        fake_plan(home.servers), models=("mine",), text_models=("tensorrt_llm",)
    )
    server = RunningServer(plan.directory, plan, ALIVE)
    assert server.text_model() == server.text_model("mine") == "tensorrt_llm"


def test_killed_supervisor_is_explained_by_the_log(home: Home) -> None:
    server = add(home, "a", GONE)
    server.plan.log.write_text("E demo] the engine worker died\nError: no memory\n")
    assert server.why == (
        "the server's supervisor was killed", "demo: the engine worker died", "Error: no memory",
    )  # fmt: skip


def test_server_from_before_a_reboot(home: Home) -> None:
    server = add(home, "a", dataclasses.replace(ALIVE, boot_id="another"))
    assert server.phase == "died"
    assert server.why == ("the server ended when this machine was rebooted",)


def test_server_of_another_machine_has_an_unknown_phase(home: Home) -> None:
    server = add(home, "a", ELSEWHERE)
    assert (server.phase, server.is_running, server.is_over) == ("unknown", False, False)
    for find in (find_running, find_to_stop):
        with pytest.raises(NoServer) as raised:
            find(home, None)
        assert str(raised.value) == (
            "The state of the server for a is unknown.\n"
            "Why: the server was started on node-a, and only that machine can determine the "
            "server's state\n"
            f"Next: run `tllm status` on node-a, or `rm -r {server.directory}` if that machine no "
            "longer exists"
        )


def test_server_of_another_container_is_stopped_there(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container may have the host name of its machine, and its folder must not be removed."""
    add(home, "a", dataclasses.replace(ALIVE, host="node-a"))
    monkeypatch.setattr("trtllm_serve_cli.launch.server_state.read_pid_namespace", lambda: "other")
    monkeypatch.setattr("trtllm_serve_cli.launch.server_state._is_locked", lambda folder: True)
    with pytest.raises(NoServer) as raised:
        find_running(home, None)
    assert str(raised.value) == (
        "The state of the server for a is unknown.\n"
        "Why: the server was started in another container of this machine (host name node-a), and "
        "only that container can determine the server's state\n"
        "Next: run `tllm status` in that container"
    )


def test_server_of_another_machine_is_ignored(home: Home) -> None:
    add(home, "a", ELSEWHERE)
    ours = add(home, "a", ALIVE)
    assert find_running(home, None) == ours
    assert find_to_stop(home, None) == find_to_stop(home, None, everything=True) == [ours]


def test_find_started_includes_servers_that_died(home: Home) -> None:
    died = add(home, "a", GONE)
    assert find_started(home, None) == died
    running = add(home, "b", ALIVE)
    assert find_started(home, None) == running
    assert find_started(home, "a") == died


def test_log_of_the_server_that_was_stopped_last_is_found(home: Home) -> None:
    stopped = dataclasses.replace(GONE, phase="stopped")
    last, first = add(home, "a", stopped), add(home, "a", stopped)
    other = add(home, "b", stopped)
    for age_s, server in enumerate((other, last, first)):
        os.utime(server.directory, (1000 - age_s, 1000 - age_s))
    assert find_logged(home, None) == other
    assert find_logged(home, "a") == last
    assert find_logged(home, None, first.endpoint.http) == first
    with pytest.raises(NoServer, match="No server is running for c"):
        find_logged(home, "c")
    died = add(home, "a", GONE)
    assert find_logged(home, None) == find_logged(home, "a") == died
    assert find_logged(home, "b") == other


def test_several_servers_that_died_are_ambiguous(home: Home) -> None:
    died = [add(home, "a", GONE), add(home, "b", GONE)]
    with pytest.raises(
        NoServer, match=r"^2 servers have ended\.\n.*\nNext: select a server with -m"
    ):
        find_started(home, None)
    assert find_started(home, "b") == died[1]


def test_reading_plans_does_not_import_numpy() -> None:
    code = "import sys\nimport trtllm_serve_cli.launch.servers.running\nprint(*sys.modules)"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert "numpy" not in ran.stdout.split()
