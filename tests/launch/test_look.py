"""What a server says of itself, out of its metrics page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.ports import free_ports
from trtllm_serve_cli.client import Endpoint
from trtllm_serve_cli.launch.look import count_in_flight

PAGE = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="a",request_type="active",version="1",instance="0"} 2
nv_trt_llm_request_metrics{model="a",request_type="active",version="1",instance="1"} 3
nv_trt_llm_request_metrics{model="b",request_type="active",version="1"} 0
nv_trt_llm_request_metrics{model="c",request_type="active",version="1"} 7
# TYPE tllm_engine_worker_up gauge
tllm_engine_worker_up{model="a",version="1"} 1
tllm_engine_worker_up{model="c",version="1"} 0
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Endpoint(metrics=f"127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_engines_tell_what_they_have(endpoint: Endpoint) -> None:
    """That of a worker that is dead is not waited for."""
    assert count_in_flight([endpoint]) == {"a": 5}
    assert count_in_flight([endpoint, endpoint]) == {"a": 10}


def test_server_that_is_silent_has_nothing() -> None:
    (port,) = free_ports(1)
    assert count_in_flight([Endpoint(metrics=f"127.0.0.1:{port}")]) == {}
