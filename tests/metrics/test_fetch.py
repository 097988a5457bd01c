from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed
from trtllm_serve_cli.metrics.fetch import fetch_metrics, read_saved_metrics


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


def test_rejects_a_saved_page_without_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.txt").touch()
    with pytest.raises(BadInput, match="could not be read as a metrics page") as raised:
        read_saved_metrics(tmp_path / "metrics.txt")
    assert raised.value.why == "the file contains no metrics"
