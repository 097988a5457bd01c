"""A fake Triton for the gateway's `/v2` requests, and a gateway that uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from starlette.testclient import TestClient

from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel


class Triton(BaseHTTPRequestHandler):
    """Returns a description of each request, or a stream for `generate_stream`.

    A model named `missing` is not loaded.
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        received = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "size": len(body),
            "address": "{}:{}".format(*self.server.server_address[:2]),
        }
        answer = json.dumps(received).encode()
        is_stream = self.path.endswith("_stream")
        self.send_response(400 if "missing" in self.path else 200)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(answer) + 8 * is_stream))
        self.end_headers()
        self.wfile.write(b"data: %b\n\n" % answer if is_stream else answer)

    do_POST = do_GET


@contextmanager
def serving_triton(handler: type[BaseHTTPRequestHandler] = Triton) -> Iterator[str]:
    """Serve a Triton, and yield its HTTP address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving_gateway(
    *addresses: str, inputs: frozenset[str] = frozenset(), **fields: Any
) -> Iterator[TestClient]:
    """Serve a gateway for the model `demo` on the Tritons with these HTTP addresses.

    `inputs` are those of the model. `fields` are fields of the gateway's configuration.
    """
    served = tuple(ServedModel("demo", "demo", Endpoint(http=each)) for each in addresses)
    config = GatewayConfig(served, max_body_bytes=4000, **fields)
    info = ModelInfo("demo", inputs=inputs)
    registry = LoadedRegistry(config, make_model(FakeBackend(), info=info))
    with TestClient(build_app(config, registry), raise_server_exceptions=False) as client:
        yield client
