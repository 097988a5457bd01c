"""The gateway's process, as `tllm start` and `tllm gateway` run it."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.samples.certificates import certify
from tests.waiting import wait_until
from trtllm_serve_cli.choices import LogFormat
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.health import find_gateway_problem


def make_config(**fields: Any) -> GatewayConfig:
    """Return the configuration of a gateway whose model has no server."""
    served = ServedModel("demo", "demo", Endpoint(grpc="127.0.0.1:9", http=""))
    return GatewayConfig((served,), **{"port": free_ports(1)[0], **fields})


@contextmanager
def running(
    tmp_path: Path, config: GatewayConfig, open_files: tuple[int, int] | None = None
) -> Iterator[Path]:
    """Run the gateway, wait until it responds, and yield its log.

    `open_files` are the soft and the hard limit of open files when it starts.
    """
    file, log = tmp_path / "gateway.json", tmp_path / "gateway.log"
    file.write_text(config.to_json())

    def set_limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, open_files)

    with (
        log.open("wb") as output,
        subprocess.Popen(
            (sys.executable, "-m", "trtllm_serve_cli.gateway", str(file)),
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=set_limit,
        ) as gateway,
    ):
        try:
            wait_until(lambda: "does not respond" not in find_gateway_problem(config))
            yield log
        finally:
            gateway.terminate()


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("localhost", "localhost"), ("::", "[::1]"), ("::1", "[::1]")],
)
def test_url_is_for_clients_on_this_machine(host: str, address: str) -> None:
    assert make_config(host=host, port=9000).url == f"http://{address}:9000"


def test_gateway_listens_on_an_ipv6_address(tmp_path: Path) -> None:
    config = make_config(host="::1")
    with running(tmp_path, config):
        assert "The model 'demo' is not ready" in find_gateway_problem(config)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl (apt-get install openssl)")
@pytest.mark.parametrize("num_processes", [1, 2])
def test_requests_are_encrypted_with_the_certificate(tmp_path: Path, num_processes: int) -> None:
    certificate, key = certify(tmp_path, "gateway", "-addext", "subjectAltName=IP:127.0.0.1")
    config = make_config(
        num_processes=num_processes, tls_certificate=str(certificate), tls_key=str(key)
    )
    trusting = ssl.create_default_context(cafile=str(certificate))
    with running(tmp_path, config):
        assert "The model 'demo' is not ready" in find_gateway_problem(config)
        with urllib.request.urlopen(f"{config.url}/version", context=trusting) as response:
            assert (config.url[:8], response.status) == ("https://", 200)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{config.url}/version", context=ssl.create_default_context())
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{config.port}/version")


def test_server_starts_without_large_libraries() -> None:
    code = "import sys\nimport trtllm_serve_cli.gateway.server\nprint(*sys.modules)"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert {"aiohttp", "grpc", "tokenizers", "transformers"} & set(ran.stdout.split()) == set()


def test_soft_limit_of_open_files_does_not_limit_the_connections(tmp_path: Path) -> None:
    config = make_config(max_in_flight=200, max_waiting=200)
    with running(tmp_path, config, (128, 1000)) as log, ExitStack() as connections:
        for _ in range(400):
            address = ("127.0.0.1", config.port)
            connection = connections.enter_context(socket.create_connection(address, timeout=20))
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert "open files" not in log.read_text()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_hard_limit_of_open_files_that_is_too_low_is_logged(
    tmp_path: Path, log_format: LogFormat
) -> None:
    config = make_config(max_in_flight=200, max_waiting=200, log_format=log_format)
    with running(tmp_path, config, (128, 500)) as log:
        (line,) = (each for each in log.read_text().splitlines() if "open files" in each)
    message = (
        "The open file limit is 500, but 656 open files are required for 200 running and 200 "
        "queued requests per process. Raise the hard limit (`ulimit -Hn`), or lower "
        "--openai-max-in-flight and --openai-max-waiting."
    )
    assert message == json.loads(line)["message"] if log_format == "json" else message in line
