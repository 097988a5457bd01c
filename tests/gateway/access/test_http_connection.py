"""Connections of clients that send slowly or too much, to a real HTTP server."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.access.http_connection import limit_connections
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@contextlib.contextmanager
def running_gateway(timeout_s: float) -> Iterator[tuple[str, int]]:
    """Serve a gateway in a thread, and yield its address."""
    config = GatewayConfig(
        (ServedModel("demo", "demo", Endpoint()),),
        max_header_bytes=2000,
        receive_timeout_s=timeout_s,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(config, LoadedRegistry(config, make_model(FakeBackend()))),
            http=limit_connections(config.max_header_bytes, timeout_s),
            log_level="critical",
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def read_all(client: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (GET, b"HTTP/1.1 408"),
        (GET + b"x-a: b", b"HTTP/1.1 408"),
        (POST + b"content-length: 100\r\n\r\n{", b"HTTP/1.1 408"),
    ],
)
def test_slow_requests_end(sent: bytes, status: bytes) -> None:
    with running_gateway(0.2) as address, socket.create_connection(address, 30) as client:
        client.sendall(sent)
        assert read_all(client)[:12] == status


def test_slow_headers_after_a_response_end() -> None:
    with running_gateway(0.2) as address, socket.create_connection(address, 30) as client:
        client.sendall(GET + b"\r\n")
        client.recv(65536)
        client.sendall(GET)
        received = read_all(client)
    assert b"HTTP/1.1 408" in received


def test_headers_that_never_end_are_not_collected() -> None:
    with running_gateway(30) as address, socket.create_connection(address, 30) as client:
        client.sendall(GET)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"x-a: " + b"b" * 4000 + b"\r\n")
        assert read_all(client)[:12] in (b"HTTP/1.1 431", b"")


def test_complete_headers_have_the_exact_limit() -> None:
    with running_gateway(30) as address, socket.create_connection(address, 30) as client:
        client.sendall(GET + b"x-a: " + b"b" * 2000 + b"\r\n\r\n")
        assert read_all(client)[:12] == b"HTTP/1.1 431"


def test_timely_requests_share_a_connection() -> None:
    with running_gateway(30) as address, socket.create_connection(address, 30) as client:
        for _ in range(3):
            for part in (GET[:10], GET[10:], b"\r\n"):
                client.sendall(part)
            # The head and the body of a response may arrive separately.
            with http.client.HTTPResponse(client) as response:
                response.begin()
                assert (response.status, response.read()[:1]) == (200, b"{")
