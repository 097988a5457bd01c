"""The health check of a gateway, for which an HTTP server with a fixed response stands in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.ports import free_ports
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.health import find_gateway_problem

Serve = Callable[[int, bytes], GatewayConfig]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Yield a function that starts a server with one response and returns its configuration."""
    with ExitStack() as stack:

        def start(status: int, body: bytes) -> GatewayConfig:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, *_: object) -> None:
                    pass

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            return GatewayConfig(models=(), port=server.server_port)

        yield start


def test_healthy_gateway_has_no_problem(serve: Serve) -> None:
    assert find_gateway_problem(serve(200, b"")) == ""


def test_gateway_reports_its_problem(serve: Serve) -> None:
    body = b'{"error": {"message": "The model \'m\' is not ready"}}'
    assert find_gateway_problem(serve(503, body)) == "The model 'm' is not ready"


@pytest.mark.parametrize(
    "body", [b"Internal Server Error", b"[]", b'{"error": "bad"}', b"{}", b"[" * 100_000, b"\xff"]
)
def test_error_without_a_message_is_reported_with_its_status(serve: Serve, body: bytes) -> None:
    assert find_gateway_problem(serve(500, body)) == "its health check has the status 500"


def test_gateway_that_does_not_listen_does_not_respond() -> None:
    config = GatewayConfig(models=(), port=free_ports(1)[0])
    assert find_gateway_problem(config) == "the gateway does not respond (ConnectionRefusedError)"
