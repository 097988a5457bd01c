"""The gateway's process, as `tllm start` and `tllm gateway` run it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.samples.certificates import certify
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.health import find_gateway_problem


@contextmanager
def running(tmp_path: Path, config: GatewayConfig) -> Iterator[None]:
    """Run the gateway, and wait until it responds."""
    file = tmp_path / "gateway.json"
    file.write_text(config.to_json())
    command = (sys.executable, "-m", "trtllm_serve_cli.gateway", str(file))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as gateway:
        try:
            wait_until(lambda: "does not respond" not in find_gateway_problem(config))
            yield
        finally:
            gateway.terminate()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl (apt-get install openssl)")
@pytest.mark.parametrize("num_processes", [1, 2])
def test_requests_are_encrypted_with_the_certificate(tmp_path: Path, num_processes: int) -> None:
    certificate, key = certify(tmp_path, "gateway", "-addext", "subjectAltName=IP:127.0.0.1")
    config = GatewayConfig(
        (ServedModel("demo", "demo", Endpoint(grpc="127.0.0.1:9", http="")),),
        port=free_ports(1)[0],
        num_processes=num_processes,
        tls_certificate=str(certificate),
        tls_key=str(key),
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
