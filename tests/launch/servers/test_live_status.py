"""Requests in flight, counted in the metrics of a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.ports import free_ports
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.launch.servers.live_status import count_in_flight, watch_in_flight

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


IDLE = PAGE.replace("} 2", "} 0").replace("} 3", "} 0")


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(metrics_pages=[PAGE]) as fake:
        yield fake


@pytest.fixture
def endpoint(triton: FakeTriton) -> Endpoint:
    return triton.endpoint


def test_in_flight_requests_are_counted_by_engine(endpoint: Endpoint) -> None:
    """Requests of a dead worker are not counted."""
    assert count_in_flight([endpoint]) == {"a": 5}
    assert count_in_flight([endpoint, endpoint]) == {"a": 10}


def test_other_engines_are_not_counted(endpoint: Endpoint) -> None:
    assert count_in_flight([endpoint], {"b", "c"}) == {}


def test_server_is_idle_after_two_queries(triton: FakeTriton) -> None:
    """The first query may have missed a request on its way to the engine."""
    triton.metrics_pages = [IDLE, PAGE, IDLE]
    assert list(watch_in_flight([triton.endpoint])) == [{}, {"a": 5}, {}, {}]


def test_unresponsive_server_may_have_requests(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = Endpoint(metrics=f"127.0.0.1:{listener.getsockname()[1]}")
        assert count_in_flight([silent], timeout_s=0.1) is None
        assert next(watch_in_flight([silent], timeout_s=0.1)) is None
        # The responsive server must respond within the timeout.
        assert count_in_flight([silent, endpoint], timeout_s=2.0) == {"a": 5}
        assert count_in_flight([silent, endpoint], {"b"}, timeout_s=2.0) is None


def test_server_that_does_not_listen_has_no_requests() -> None:
    (port,) = free_ports(1)
    assert count_in_flight([Endpoint(metrics=f"127.0.0.1:{port}")]) == {}
