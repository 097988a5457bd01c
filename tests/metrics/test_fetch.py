from __future__ import annotations

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.errors import NoServer, RequestFailed
from trtllm_serve_cli.metrics.fetch import fetch_metrics


def test_fetch_returns_the_page_unchanged() -> None:
    with FakeTriton() as triton:
        assert fetch_metrics(triton.endpoint.metrics) == triton.metrics_pages[0]


def test_rejects_a_truncated_page() -> None:
    with FakeTriton() as triton:
        triton.metrics_length = 4096
        with pytest.raises(RequestFailed, match="is not a metrics page") as raised:
            fetch_metrics(triton.endpoint.metrics)
    assert "truncated" in raised.value.why


def test_rejects_another_port_of_the_server() -> None:
    with (
        FakeTriton() as triton,
        pytest.raises(RequestFailed, match="is not a metrics page") as raised,
    ):
        fetch_metrics(f"{triton.endpoint.metrics}/v2")
    assert "HTTP status 404" in raised.value.why
    assert "8002" in raised.value.next_step


def test_rejects_the_grpc_port() -> None:
    with (
        FakeTriton() as triton,
        pytest.raises(RequestFailed, match="is not a metrics page"),
    ):
        fetch_metrics(triton.endpoint.grpc)


def test_reports_a_missing_server() -> None:
    with pytest.raises(NoServer, match=r"publishes metrics at 127.0.0.1:1") as raised:
        fetch_metrics("127.0.0.1:1")
    assert "tllm status" in raised.value.next_step
