"""Test spans and their export to a collector."""

from __future__ import annotations

import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.otlp_collector import collector
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.telemetry.spans import (
    SERVER,
    Span,
    SpanExporter,
    child_trace_parent,
    read_trace_parent,
    render_spans,
)

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_renders_a_span_as_otlp() -> None:
    span = Span(PARENT, "engine", 5, 9, {"id": "r", "tokens": 2**40}, {"first token": 7}, "gone")
    resource_spans = render_spans([span], "demo", 100)["resourceSpans"][0]
    (made,) = resource_spans["scopeSpans"][0]["spans"]
    assert len(made.pop("spanId")) == 16
    assert made == {
        "traceId": "a" * 32, "parentSpanId": "b" * 16, "name": "engine", "kind": 1,
        "startTimeUnixNano": "105", "endTimeUnixNano": "109",
        "attributes": [{"key": "id", "value": {"stringValue": "r"}},
                       {"key": "tokens", "value": {"intValue": "1099511627776"}}],
        "events": [{"name": "first token", "timeUnixNano": "107"}],
        "status": {"code": 2, "message": "gone"},
    }  # fmt: skip


def test_root_span_has_its_own_id_and_no_parent() -> None:
    attributes = {"seconds": 0.5, "reasons": ("stop", "length")}
    root = Span("00-" + "a" * 32 + "--01", "chat", 5, 9, attributes, id="c" * 16, kind=SERVER)
    (made,) = render_spans([root], "gateway", 0)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (made["spanId"], made["parentSpanId"], made["kind"]) == ("c" * 16, "", 2)
    reasons = [{"stringValue": "stop"}, {"stringValue": "length"}]
    assert made["attributes"] == [
        {"key": "seconds", "value": {"doubleValue": 0.5}},
        {"key": "reasons", "value": {"arrayValue": {"values": reasons}}},
    ]


def test_children_keep_the_trace_and_the_flags() -> None:
    assert child_trace_parent(PARENT, "c" * 16) == "00-" + "a" * 32 + "-" + "c" * 16 + "-01"


def test_close_sends_the_remaining_spans() -> None:
    with collector() as received:
        exporter = SpanExporter(received.url, "demo")
        exporter.add(Span(PARENT, "engine", 5, 9))
        exporter.close()
        assert [span.name for span in received.spans()] == ["engine"]


def test_logs_an_unreachable_collector_once(capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[str] = []

    def has_failed() -> bool:
        logged.append(capsys.readouterr().err)
        return "spans cannot be sent" in logged[-1]

    exporter = SpanExporter("http://127.0.0.1:1/v1/traces", "demo", period_s=0.01)
    exporter.add(Span(PARENT, "engine", 5, 9))
    wait_until(has_failed)
    exporter.add(Span(PARENT, "engine", 5, 9))
    exporter.close()
    assert not has_failed()


@pytest.mark.parametrize(
    "response",
    [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"],
    ids=["no HTTP", "incomplete"],
)
def test_close_ignores_an_invalid_response(
    response: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(response)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=respond)
        thread.start()
        exporter = SpanExporter(f"http://127.0.0.1:{server.getsockname()[1]}/", "demo", 3600.0)
        exporter.add(Span(PARENT, "engine", 5, 9))
        exporter.close()
        thread.join()
    assert "spans cannot be sent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("context", "parent"),
    [(json.dumps({"traceparent": PARENT}), PARENT), (None, ""), ("", ""), ("{}", "")],
)
def test_reads_the_trace_parent_of_a_request(context: str | None, parent: str) -> None:
    request: Any = SimpleNamespace(trace=lambda: SimpleNamespace(get_context=lambda: context))
    assert read_trace_parent(request) == parent
