"""Tests of the commands `tllm start`, `stop`, `status` and `logs` with a fake tritonserver."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import calls_of, write_engine
from tests.ports import free_ports
from tests.samples.launch_plans import fake_plan, pids_in, write_fake_tritonserver
from tests.samples.repositories import add_model
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.cli.server.start import show_loading, suggest_prompts
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.importing.import_record import ImportRecord, record_import
from trtllm_serve_cli.launch.launch_options import DRAIN_S
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    ServerState,
    describe_supervisor,
    read_state,
    write_state,
)
from trtllm_serve_cli.launch.servers.running import RunningServer, list_servers
from trtllm_serve_cli.launch.startup import STARTUP_FILE
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.launch.triton.triton_install import find_embedded_root
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.model.render import MANIFEST
from trtllm_serve_cli.repository.settings.engine_references import find_users

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def home(home_folder: Path) -> Iterator[Home]:
    """Yield a home with the model `m`, and stop its servers afterwards."""
    home = find_home()
    add_model(home, "m")
    yield home
    for server in list_servers(home):
        stop_server(server)


@pytest.fixture
def tllm(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Tllm:
    """Run `tllm` with a fake tritonserver that behaves as $BEHAVIOUR selects."""
    program = tmp_path / "bin" / "tritonserver"
    write_fake_tritonserver(program)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def ports() -> list[str]:
    names = ("--http-port", "--grpc-port", "--metrics-port")
    numbers = free_ports(3)
    words = [w for pair in zip(names, map(str, numbers), strict=True) for w in pair]
    return [*words, "--no-openai"]


def test_loading_prints_each_model_once(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with show_loading(fake_plan(home.servers)) as report:
        for loading in (("a", "b", "c"), ("a", "b", "c"), ("b", "a"), ("b",), (), ()):
            report(loading)
    assert capsys.readouterr().err.splitlines() == [
        "Loading a, b, c …",
        "Loaded c (2 models still loading)",
        "Loaded a (1 model still loading)",
        "Generating the first token …",
    ]


def test_status_separates_servers(tllm: Tllm, home: Home) -> None:
    for name in ("m", "n"):
        plan = dataclasses.replace(fake_plan(home.servers), models=(name,))
        plan.directory.mkdir(parents=True)
        (plan.directory / PLAN_FILE).write_text(plan.to_json())
        gone = dataclasses.replace(describe_supervisor("ready"), supervisor_started_at=0.0)
        write_state(plan.directory, gone)
    parts = tllm("status")[1].split("\n\n")
    assert sorted(part.splitlines()[0] for part in parts) == ["m: died", "n: died"]


def test_server_from_start_to_stop(tllm: Tllm, ports: list[str]) -> None:
    code, out, err = tllm("start", *ports)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == 'Next: tllm infer "What is ML?"'
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/m/generate\n" in err
    code, out, _ = tllm("status")
    assert (code, out.splitlines()[0].startswith("m: ready, up ")) == (0, True)
    code, out, err = tllm("stop")
    assert (code, out) == (0, "")
    assert err == f"Stopping m on 127.0.0.1:{ports[1]} …\nStopped.\n"
    assert tllm("status") == (0, "", "No server is running. Next: run `tllm start`\n")
    code, out, err = tllm("logs", "-n", "1")
    assert (code, out.count("\n")) == (0, 1)
    assert err == f"{find_home().servers / ports[1] / 'server.log'}:\n"


@pytest.fixture
def served(home: Home) -> RunningServer:
    """Return a server with a gateway on port 9000, whose processes do not run."""
    plan = fake_plan(home.servers)
    gateway = GatewayConfig((), port=9000)
    plan = dataclasses.replace(plan, repository=home.models / "m", gateway=gateway)
    return RunningServer(plan.directory, plan, ServerState("ready", 0, 0.0))


def with_gateway(server: RunningServer, **fields: Any) -> RunningServer:
    """Return a copy of the server whose gateway has other settings."""
    assert server.plan.gateway is not None
    gateway = dataclasses.replace(server.plan.gateway, **fields)
    return dataclasses.replace(server, plan=dataclasses.replace(server.plan, gateway=gateway))


def test_commands_to_try_include_the_openai_api(served: RunningServer) -> None:
    assert suggest_prompts(served, [served]) == [
        'tllm infer "What is ML?"',
        'tllm infer -i openai "What is ML?"',
    ]
    other = with_gateway(served, port=9100)
    assert suggest_prompts(served, [served, other])[1] == (
        'tllm infer -i openai -u http://127.0.0.1:9000 "What is ML?"'
    )


def test_commands_to_try_name_the_model_and_the_server(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = dataclasses.replace(served.plan, models=("m", "n"))
    several = dataclasses.replace(served, plan=models)
    assert suggest_prompts(several, [several])[1] == 'tllm infer -i openai -m m "What is ML?"'
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    assert "-u http://127.0.0.1:9000" in suggest_prompts(served, [served])[1]


def test_commands_that_would_fail_are_not_suggested(served: RunningServer, home: Home) -> None:
    encrypted = with_gateway(served, tls_certificate="server.crt")
    assert len(suggest_prompts(encrypted, [encrypted])) == 1
    manifest = home.models / "m" / MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "layout": "embedding"}))
    assert len(suggest_prompts(served, [served])) == 1


def test_start_as_json_is_alone_on_stdout(tllm: Tllm, ports: list[str]) -> None:
    code, out, _ = tllm("start", *ports, "--json")
    started = json.loads(out)
    assert (code, started["models"], started["state"]) == (0, ["m"], "ready")
    code, out, err = tllm("status", "--json")
    (server,) = json.loads(out)["servers"]
    assert (code, err, server["server_pid"]) == (0, "", started["server_pid"])
    assert sum(server["memory_bytes"].values()) > 1_000_000


def test_failed_start_shows_the_cause_and_the_log(
    tllm: Tllm, home: Home, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "fail")
    code, out, err = tllm("start", *ports)
    log = home.servers / ports[1] / "server.log"
    assert (code, out) == (3, "")
    assert err.endswith(
        "Error: The server for m did not become ready.\n"
        "  Why: m: Internal: ModuleNotFoundError: No module named 'nowhere'\n"
        " Next: run `tllm validate m` to check the model repository, `tllm export m > m.yaml && "
        "tllm import -f m.yaml --force` to rebuild the engine, or `tllm doctor` to check this "
        f"machine; the full log is {log}\n"
    )
    assert [is_gone(pid) for pid in pids_in(log)] == [True]
    assert "m: failed\n  m: Internal: ModuleNotFoundError" in tllm("status")[1]


def test_port_in_use_names_the_process(tllm: Tllm, ports: list[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(ports[3])))
        other.listen()
        code, _, err = tllm("start", *ports)
    assert (code, f"Error: The gRPC port {ports[3]} is in use." in err) == (3, True)
    assert "(pid " in err


def test_second_server_of_a_model_names_the_first(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    code, _, err = tllm("start", *ports)
    assert (code, err.partition("\n")[0]) == (
        3,
        f"Error: A server with HTTP port {ports[1]} already exists.",
    )
    numbers = free_ports(3)
    names = ("http", "grpc", "metrics")
    other = [f"--{name}-port={n}" for name, n in zip(names, numbers, strict=True)]
    code, _, err = tllm("start", *other, "--no-openai")
    assert (code, f"A running server already serves m on 127.0.0.1:{ports[1]}.\n" in err) == (
        0,
        True,
    )
    assert f'Next: tllm infer -u 127.0.0.1:{numbers[1]} -m m "What is ML?"' in err
    assert tllm("stop", "--all")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("start", "-m", "nope"), "Error: No model named 'nope' has been imported."),
        (("start", "-m", "m", "-m", "m"), "Error: One server cannot serve two models named m."),
        (("start", "--http-port", "8001", "--grpc-port", "8001"), "are not distinct."),
        (("start", "--image", "mine:1"), "Error: --image requires container mode."),
        (("start", "--host", "::1"), "Error: The server cannot listen on the IPv6 address ::1."),
        (
            ("start", "--host", "203.0.113.7"),
            "Error: The server cannot listen on 203.0.113.7",
        ),
        (("stop",), "Error: No server is running."),
        (("stop", "-m", "m"), "Error: No server is running for m."),
        (("logs",), "Error: No server is running."),
        (("logs", "-m", "m"), "Error: No server is running for m."),
    ],
)
def test_user_errors_exit_with_3(tllm: Tllm, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = tllm(*arguments)
    assert (code, out, message in err, "Traceback" in err) == (3, "", True, False)


def test_stop_all_without_a_server_is_done(tllm: Tllm) -> None:
    assert tllm("stop", "--all") == (0, "", "No server is running.\n")


def test_dry_run_prints_the_command_and_starts_nothing(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    code, out, err = tllm("start", *ports, "--dry-run")
    assert (code, err, home.servers.exists()) == (0, "", False)
    assert f"  --http-port={ports[1]} \\\n" in out
    code, out, err = tllm("start", *ports, "--dry-run", "--json")
    assert (code, err, f"--http-port={ports[1]}" in json.loads(out)["argv"]) == (0, "", True)


def test_missing_image_is_fetched_with_progress(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    podman = write_engine(tmp_path / "bin", "podman", pull="echo Copying blob")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    code, out, err = tllm("start", *ports, *container, "--dry-run")
    assert (code, err, "  podman \\\n  run \\\n" in out) == (0, "", True)
    assert calls_of(podman, "pull") == []
    code, out, err = tllm("start", *ports, *container, "--json")
    assert (code, json.loads(out)["mode"]) == (0, "container")
    assert err.startswith("Fetching img …\nCopying blob\n")
    assert tllm("stop")[0] == 0


def test_image_that_cannot_be_fetched_is_3_and_starts_nothing(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    podman = write_engine(tmp_path / "bin", "podman", pull="echo unauthorized >&2; exit 125")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "nvcr.io/img")
    code, out, err = tllm("start", *ports, *container)
    assert (code, out, calls_of(podman, "run")) == (3, "", [])
    assert err.endswith(
        "Error: The image nvcr.io/img could not be pulled.\n"
        "  Why: the registry requires a login or denies access: unauthorized\n"
        " Next: run `podman login nvcr.io` with the user $oauthtoken and an NGC API key\n"
    )


def test_chosen_mode_is_reported(tllm: Tllm, home: Home, ports: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "tritonserver").unlink()
    write_engine(tmp_path / "bin", "docker", info="exit 1")
    write_engine(tmp_path / "bin", "podman")
    mode = ("--mode", "auto", "--image", "img")
    code, out, _ = tllm("start", *ports, *mode, "--dry-run")
    # An embedded Triton is used if it is installed.
    assert (code, "Serve m from" in out) == (0, True)
    assert ("Using a container because " in out) == (find_embedded_root() is None)


def test_logs_of_a_server_that_died(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "fail")
    tllm("start", *ports)
    code, out, _ = tllm("logs", "-n", "1")
    assert (code, out.count("\n"), "No module named 'nowhere'" in out) == (0, 1, True)
    assert tllm("logs", "-n", "0")[1] == ""


def test_two_servers_are_distinguished(tllm: Tllm, home: Home, ports: list[str]) -> None:
    add_model(home, "n")
    *names, no_openai = ports[::2]
    others = [w for pair in zip(names, map(str, free_ports(3)), strict=True) for w in pair]
    others.append(no_openai)
    tllm("start", "-m", "m", *ports), tllm("start", "-m", "n", *others)
    code, _, err = tllm("stop")
    assert (code, "2 servers are running." in err) == (3, True)
    code, _, err = tllm("logs")
    assert (code, "2 servers are running." in err) == (3, True)
    assert tllm("logs", "-u", f"localhost:{ports[1]}", "-n", "0")[0] == 0
    code, _, err = tllm("stop", "-u", "localhost:9")
    assert (code, "No tllm server is running on 127.0.0.1:9." in err) == (3, True)
    assert tllm("stop", "-m", "n")[0] == 0
    assert tllm("stop", "--all")[2] == f"Stopping m on 127.0.0.1:{ports[1]} …\nStopped.\n"


def test_several_models_in_one_server(tllm: Tllm, home: Home, ports: list[str]) -> None:
    add_model(home, "n")
    code, _, err = tllm("start", "-m", "m", "-m", "n", *ports)
    assert (code, err.splitlines()[-1]) == (0, 'Next: tllm infer -m m "What is ML?"')
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/n/generate\n" in err
    served = home.servers / ports[1] / "models"
    assert {"m", "m_tensorrt_llm", "n", "n_ensemble"} <= {path.name for path in served.iterdir()}
    assert tllm("status")[1].startswith("m, n: ready, up ")
    code, _, err = tllm("infer", "hello")
    assert (code, "The server has several models, but no model was specified." in err) == (
        3,
        True,
    )
    code, _, err = tllm("bench", "token-norm-dist")
    assert (code, "Next: select a model with -m, for example -m m\n" in err) == (3, True)
    assert tllm("remove", "n", "--yes")[0] == 3
    _, _, err = tllm("set", "n", "max_num_tokens=128")
    assert err.endswith("Next: tllm restart -m n\n")
    assert tllm("stop", "-m", "n")[0] == 0


def test_folder_is_served_with_an_imported_model(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    path = add_model(Home(tmp_path / "elsewhere", home.engines), "n").path
    code, out, _ = tllm("start", "-m", "m", "--repo", str(path), "--dry-run", "--json")
    assert (code, json.loads(out)["models"]) == (0, ["m", "n"])
    code, out, _ = tllm("start", "-m", "n", "--repo", str(path), "--dry-run", "--json")
    assert (code, json.loads(out)["repository"]) == (0, str(path))


def test_served_copy_of_a_repository_keeps_its_engine(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(home.models / "m", tmp_path / "copy")
    assert tllm("start", "--repo", str(copy), *ports)[0] == 0
    assert find_users(home) == {home.engines / "m": [copy, home.models / "m"]}


def test_foreground_stays_until_interrupted(tllm: Tllm, home: Home, ports: list[str]) -> None:
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "start", "--foreground", *ports)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = list(iter(process.stderr.readline, "Ctrl-C stops the server.\n"))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert lines[1].startswith("m is ready after ")
    assert f"  HTTP     http://127.0.0.1:{ports[1]}/v2/models/m/generate\n" in lines
    assert lines[-1] == 'Next: tllm infer "What is ML?"\n'
    assert (process.returncode, "Traceback" in rest) == (130, False)
    log = home.servers / ports[1] / "server.log"
    wait_until(lambda: all(is_gone(pid) for pid in pids_in(log)))


def test_terminated_start_leaves_no_server(
    tllm: Tllm, home: Home, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "silent")
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "start", *ports)
    log = home.servers / ports[1] / "server.log"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: log.exists() and pids_in(log))
        process.terminate()
    assert (process.returncode, [is_gone(pid) for pid in pids_in(log)]) == (143, [True])


def test_interrupted_stop_tells_how_to_continue(
    tllm: Tllm, ports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    tllm("start", *ports)
    with monkeypatch.context() as patched:
        patched.setattr("trtllm_serve_cli.launch.supervisor.stopping.stop_server", interrupt)
        code, _, err = tllm("stop")
    assert (code, err.splitlines()[1:]) == (
        130,
        [
            f"Interrupted. 127.0.0.1:{ports[1]} rejects new requests and stops as soon as its "
            "requests in flight have finished.",
            f"Next: run `tllm stop -u 127.0.0.1:{ports[1]}` to wait, or add --timeout 0 to cancel "
            "the requests",
        ],
    )


def test_stop_and_restart_as_json_are_alone_on_stdout(tllm: Tllm, ports: list[str]) -> None:
    tllm("start", *ports)
    code, out, _ = tllm("restart", "--json")
    assert (code, json.loads(out)["state"]) == (0, "ready")
    code, out, _ = tllm("stop", "--json")
    stopped = {"models": ["m"], "http": f"127.0.0.1:{ports[1]}", "job": None, "why": []}
    assert (code, json.loads(out)) == (
        0, {"servers": [{**stopped, "had_ended": False, "error": None}]},
    )  # fmt: skip
    assert json.loads(tllm("stop", "--all", "--json")[1]) == {"servers": []}


def test_log_as_json_has_one_object_per_line(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    (home.servers / ports[1] / "server.log").write_text("W m] careful\nplain\n")
    _, out, _ = tllm("logs", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"text": "W m] careful", "level": "warning", "model": "m"},
        {"text": "plain", "level": "info", "model": None},
    ]


def test_declared_switch_can_be_turned_off(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin" / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    file = home.models / "m" / "tllm.json"
    launch = {"mode": "mpi", "oversubscribe": True, "multi_model": True}
    file.write_text(json.dumps({**json.loads(file.read_text()), "declaration": {"launch": launch}}))
    code, _, err = tllm("start", "--dry-run")
    assert (code, "omit --multi-model" in err) == (3, True)
    code, out, _ = tllm("start", "--no-multi-model", "--dry-run")
    assert (code, "--oversubscribe" in out) == (0, True)
    code, out, _ = tllm("start", "--no-multi-model", "--no-oversubscribe", "--dry-run")
    assert (code, "--oversubscribe" in out) == (0, False)


def test_log_by_level_and_by_model(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    with (home.servers / ports[1] / "server.log").open("a") as log:
        log.write("W m] careful\nE m] Traceback (most recent call last):\n  File\nOSError\n")
    shown = "E m] Traceback (most recent call last):\n  File\nOSError\n"
    assert tllm("logs", "--level", "error")[1] == shown
    assert tllm("logs", "--level", "warning", "--source", "m")[1] == f"W m] careful\n{shown}"
    assert tllm("logs", "--level", "warning", "-n", "1")[1] == "OSError\n"
    code, _, err = tllm("logs", "--source", "nope")
    assert (code, "The server does not have a model named 'nope'." in err) == (3, True)
    code, _, err = tllm("logs", "--gateway")
    assert (code, "The server does not serve the OpenAI-compatible API." in err) == (3, True)


def test_followed_log_has_each_line_once(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    log = home.servers / ports[1] / "server.log"
    log.write_text("one\ntwo\nhal")
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", "logs", "-f")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        with log.open("a") as file:
            file.write("f\nlast\n")
        lines += [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
    assert lines == ["one\n", "two\n", "half\n", "last\n"]


def test_help_states_the_default_drain_time(tllm: Tllm) -> None:
    text = " ".join(tllm("stop", "--help")[1].split())
    assert f"Default: {DRAIN_S}, or 0 for Slurm jobs." in text


def test_restart_keeps_the_options_of_the_server(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports, "--", "--log-info=true")
    before = json.loads(tllm("status", "--json")[1])["servers"][0]
    code, _, err = tllm("restart")
    after = json.loads(tllm("status", "--json")[1])["servers"][0]
    assert (code, err.startswith("Stopping m on ")) == (0, True)
    assert is_gone(before["supervisor_pid"])
    assert (after["state"], after["http"]) == ("ready", before["http"])
    plan = json.loads((home.servers / ports[1] / "plan.json").read_text())
    assert plan["argv"][-1] == "--log-info=true"


def test_restart_fetches_an_image_before_it_stops_anything(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path
) -> None:
    write_engine(tmp_path / "bin", "podman", image="exit 0")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    assert tllm("start", *ports, *container, "--host", "0.0.0.0")[0] == 0
    before = json.loads(tllm("status", "--json")[1])["servers"][0]
    # The image was removed after the start.
    write_engine(tmp_path / "bin", "podman", pull="echo unauthorized >&2; exit 125")
    code, _, err = tllm("restart")
    assert (code, "Stopping" in err) == (3, False)
    assert "Triton listens on 0.0.0.0 without authentication" in err
    assert "Error: The image img could not be pulled." in err
    after = json.loads(tllm("status", "--json")[1])["servers"][0]
    assert (after["state"], after["supervisor_pid"]) == ("ready", before["supervisor_pid"])
    write_engine(tmp_path / "bin", "podman", pull="echo Copying blob")
    code, _, err = tllm("restart")
    assert (code, "Fetching img …\nCopying blob\nStopping m on " in err) == (0, True)


@pytest.mark.parametrize("arguments", [(), ("--all",), ("-m", "m")])
def test_stop_removes_the_container_that_a_killed_server_left(
    tllm: Tllm, home: Home, ports: list[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    podman = write_engine(tmp_path / "bin", "podman", image="exit 0")
    container = ("--mode", "container", "--container-engine", "podman", "--image", "img")
    tllm("start", *ports, *container)
    server = json.loads(tllm("status", "--json")[1])["servers"][0]
    for pid in (server["supervisor_pid"], server["server_pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: tllm("status")[1].startswith("m: died"))
    before = len(calls_of(podman, "rm"))
    code, _, err = tllm("stop", *arguments)
    assert (code, err) == (0, f"127.0.0.1:{ports[1]} had already ended.\n")
    assert len(calls_of(podman, "rm")) == before + 1


def test_status_shows_a_stopped_supervisor_and_the_report_of_a_hang(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    tllm("start", *ports)
    directory = home.servers / ports[1]
    state = read_state(directory)
    assert state is not None
    os.kill(state.supervisor_pid, signal.SIGSTOP)
    write_state(directory, dataclasses.replace(state, hangs=2))
    wait_until(lambda: tllm("status")[1].startswith("m: unresponsive"))
    text = tllm("status")[1]
    server = json.loads(tllm("status", "--json")[1])["servers"][0]
    why = (
        "the server's supervisor is suspended; run "
        f"`kill -CONT {state.supervisor_pid}` to resume it"
    )
    assert f"m: unresponsive\n  {why}\n" in text
    assert f"  hang report {directory / 'hang-report.txt'}\n" in text
    assert (server["state"], server["hangs"], server["hang_report"]) == (
        "unresponsive", 2, str(directory / "hang-report.txt"),
    )  # fmt: skip


def test_status_shows_the_stages_of_a_start(tllm: Tllm, ports: list[str]) -> None:
    started = json.loads(tllm("start", *ports, "--json")[1])
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    (start,) = server["starts"]
    lines = tllm("status", "--startup")[1].splitlines()
    assert (server["state"], start["models"], start["why"]) == ("ready", ["m"], [])
    assert lines[0] == "m: ready"
    assert lines[1].startswith("  no import of m is recorded: ")
    assert lines[2].startswith("  start of m at ")
    names = [" ".join(line.split()[:2]) for line in lines[4:-1]]
    assert names == [each["name"] for each in start["stages"]]
    assert started["stages"] == start["stages"]
    assert lines[-1].split() == ["total", f"{start['total_s']:.1f}", "s"]


def test_start_with_a_warm_up_reports_its_duration(tllm: Tllm, ports: list[str]) -> None:
    assert "Warm-up:\n  short prompt: " in tllm("start", *ports, "--warmup", "--dry-run")[1]
    code, _, err = tllm("start", *ports, "--warmup")
    assert (code, ", warm-up " in err, "warm-up request" in err) == (0, True, False), err
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    assert [each["name"] for each in server["starts"][0]["stages"]][-1] == "warm-up"


def test_status_shows_the_stages_of_the_import(tllm: Tllm, home: Home, ports: list[str]) -> None:
    record_import(home.models / "m", ImportRecord(0.0, {"checkpoint": 12.06, "engine": 28.9}))
    tllm("start", *ports)
    (server,) = json.loads(tllm("status", "--startup", "--json")[1])["servers"]
    lines = tllm("status", "--startup")[1].splitlines()
    assert server["imports"] == {
        "m": {"ended_at": 0.0, "stages_s": {"checkpoint": 12.06, "engine": 28.9}}
    }
    assert lines[1].startswith("  import of m at ")
    assert [line.split() for line in lines[2:6]] == [
        ["stage", "duration"],
        ["checkpoint", "12.1", "s"],
        ["engine", "28.9", "s"],
        ["total", "41.0", "s"],
    ]


def test_status_explains_a_missing_record_of_a_start(
    tllm: Tllm, home: Home, ports: list[str]
) -> None:
    tllm("start", *ports)
    (home.servers / ports[1] / STARTUP_FILE).unlink()
    restart = f"tllm restart -u 127.0.0.1:{ports[1]}"
    assert tllm("status", "--startup")[1].splitlines()[2] == (
        "  no start is recorded: the server's folder has no valid record; run "
        f"`{restart}` to record a start"
    )


def test_server_that_died_is_started_again(tllm: Tllm, home: Home, ports: list[str]) -> None:
    tllm("start", *ports)
    os.kill(json.loads(tllm("status", "--json")[1])["servers"][0]["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: "m: died\n  the server's supervisor was killed\n" in tllm("status")[1])
    # The server dies with its supervisor, but holds its ports until then.
    wait_until(lambda: all(map(is_gone, pids_in(home.servers / ports[1] / "server.log"))))
    assert tllm("restart")[0] == 0
    assert tllm("status")[1].startswith("m: ready")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("start", "--", "--log-info=true", "m"), "Error: 'm' is not a Triton option."),
        (("start", "--", "--http-port=1"), "Next: use --http-port N instead"),
        (("start", "--load-model", "m"), "add --model-control-mode explicit"),
        (
            ("start", "--grpc-server-cert", "x"),
            "TLS for gRPC requires a certificate and a private key.",
        ),
        (("restart",), "Error: No server is running."),
        (("load", "m"), "Error: No server is running."),
    ],
)
def test_impossible_requests_exit_with_3(
    tllm: Tllm, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = tllm(*arguments)
    assert (code, out, message in err) == (3, "", True), err
