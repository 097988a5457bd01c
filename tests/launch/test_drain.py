"""Requests in flight, out of a metrics page; and models that refuse more of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.ports import free_ports
from trtllm_serve_cli.client import Endpoint
from trtllm_serve_cli.launch.drain import (
    count_in_flight,
    drain_environ,
    draining,
    show_in_flight,
)
from trtllm_serve_cli.runtime.draining import refuse_if_draining
from trtllm_serve_cli.runtime.engine import InvalidRequest

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
    assert show_in_flight({"a": 5, "b": 1}) == "5 in a, 1 in b"


def test_server_that_is_silent_has_nothing() -> None:
    (port,) = free_ports(1)
    assert count_in_flight([Endpoint(metrics=f"127.0.0.1:{port}")]) == {}


def test_models_refuse_requests_while_they_are_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in drain_environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    refuse_if_draining("a")
    with draining(tmp_path, ["a"]):
        refuse_if_draining("b")
        with pytest.raises(InvalidRequest, match="a takes no new requests: it is being stopped"):
            refuse_if_draining("a")
    refuse_if_draining("a")


def test_model_outside_of_a_server_of_ours_is_never_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TLLM_DRAINING", raising=False)
    refuse_if_draining("a")
