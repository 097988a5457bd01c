"""Starts that fail or are refused, with a fake tritonserver."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.container_engines import calls_of, write_engine
from tests.ports import free_ports
from tests.samples.launch_plans import pids_in
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.paths import Home

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


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
        (("start", "--host", "::1"), "Error: The server cannot listen on '::1'."),
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
