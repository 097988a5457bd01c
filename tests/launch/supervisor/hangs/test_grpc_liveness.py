"""A server's gRPC port responds, is silent or is closed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.ports import free_ports
from tests.samples.certificates import certify
from trtllm_serve_cli.client.endpoint import Tls
from trtllm_serve_cli.launch.supervisor.hangs.grpc_liveness import responds_on_grpc


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_grpc_server_responds(tmp_path: Path, is_encrypted: bool) -> None:
    certificate = certify(tmp_path, "llm.example") if is_encrypted else None
    tls = Tls(str(certificate[0]), "llm.example") if certificate else None
    with FakeTriton(certificate=certificate) as triton:
        assert responds_on_grpc(triton.endpoint.grpc, tls, 60.0)
        assert [method for method, _ in triton.calls] == ["ServerLive"]


def test_port_that_accepts_connections_and_never_responds_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert not responds_on_grpc(address, None, 0.2)


def test_closed_port_is_not_silent() -> None:
    (port,) = free_ports(1)
    assert responds_on_grpc(f"127.0.0.1:{port}", None, 60.0)


def test_server_that_rejects_the_tls_handshake_is_not_silent() -> None:
    with FakeTriton() as triton:
        assert responds_on_grpc(triton.endpoint.grpc, Tls(None), 60.0)
        assert triton.calls == []
