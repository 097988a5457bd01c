"""Send spans to the same collector as Triton, for traces that Triton or the gateway has started.

For a decoupled model, Triton's spans end when the model receives the request, so the models send
spans for the rest of the request. The requests that text models send to other models (Business
Logic Scripting) are not traced, because Triton 2.51 frees their traces too early and crashes
(observed). Like Triton, the models and the gateway send their spans as OTLP JSON over HTTP.
"""

from __future__ import annotations

import http.client
import json
import queue
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..log import write_log

_TIMEOUT_S = 5.0
# The maximum number of queued spans. If the queue is full, for example because the collector does
# not respond, further spans are dropped.
_MAX_WAITING = 4096

AttributeValue = str | int | float | Sequence[str]
# The values of `kind` in OTLP.
INTERNAL = 1
SERVER = 2


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a request.

    Times are in nanoseconds on the monotonic clock.

    - `trace_parent`: a W3C `traceparent`, which contains the trace id and the parent span id. The
      parent span id is empty for a root span.
    - `events`: a mapping from event names to times.
    - `failure`: the error message, or empty if the request did not fail.
    - `id`: the span id. If it is empty, the span gets a new id when it is sent.
    - `kind`: `INTERNAL` or `SERVER`.
    """

    trace_parent: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""
    id: str = ""
    kind: int = INTERNAL


def new_span_id() -> str:
    """Return a random span id."""
    return secrets.token_hex(8)


def child_trace_parent(trace_parent: str, span_id: str) -> str:
    """Return the `traceparent` for the child spans of the span `span_id`.

    `trace_parent` is the `traceparent` of that span itself, which contains the id of its parent
    span.
    """
    version, trace_id, _, flags = trace_parent.split("-")
    return f"{version}-{trace_id}-{span_id}-{flags}"


class SpanExporter:
    """An exporter that sends spans to the collector at `url` from a background thread.

    The thread sends the queued spans every `period_s` seconds and drops them if the request fails.
    `model` is the name of the model whose spans are sent. The gateway, which serves several models,
    uses the name `gateway`.
    """

    def __init__(self, url: str, model: str, period_s: float = 1.0) -> None:
        self._url = url
        self._model = model
        self._period_s = period_s
        self._queue: queue.SimpleQueue[Span] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._is_reachable = True
        # Connect to the collector directly. By default, urllib would use the environment's proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._thread = threading.Thread(target=self._send_periodically, daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        """Queue a span, or drop it if the queue is full."""
        if self._queue.qsize() < _MAX_WAITING:
            self._queue.put(span)

    def close(self) -> None:
        """Send the remaining spans and stop the background thread."""
        self._closing.set()
        self._thread.join()
        self._send_all()

    def _send_periodically(self) -> None:
        while not self._closing.wait(self._period_s):
            self._send_all()

    def _send_all(self) -> None:
        spans = [self._queue.get() for _ in range(self._queue.qsize())]
        if not spans:
            return
        offset_ns = time.time_ns() - time.monotonic_ns()
        body = json.dumps(render_spans(spans, self._model, offset_ns)).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                response.read()
            self._is_reachable = True
        except (OSError, ValueError, http.client.HTTPException) as error:
            if self._is_reachable:
                write_log("W", f"spans cannot be sent to {self._url}, so they are dropped: {error}")
            self._is_reachable = False


def render_spans(spans: Sequence[Span], model: str, offset_ns: int) -> dict[str, Any]:
    """Return the body of an OTLP request that contains `spans`.

    `offset_ns` is the Unix time minus the monotonic time, in nanoseconds.
    """
    resource = {"service.name": "tllm", "tllm.model": model}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "tllm"}, "spans": [_span(each, offset_ns) for each in spans]}
                ],
            }
        ]
    }


def _span(span: Span, offset_ns: int) -> dict[str, Any]:
    _, trace_id, parent_id, _ = span.trace_parent.split("-")
    return {
        "traceId": trace_id,
        "spanId": span.id or new_span_id(),
        "parentSpanId": parent_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns + offset_ns),
        "endTimeUnixNano": str(span.end_ns + offset_ns),
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": name, "timeUnixNano": str(at_ns + offset_ns)}
            for name, at_ns in span.events.items()
        ],
        "status": {"code": 2, "message": span.failure} if span.failure else {},
    }


def _attributes(values: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def _any_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        # OTLP's JSON encoding represents 64-bit integers as strings.
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_any_value(each) for each in value]}}


def read_trace_parent(request: Any) -> str:
    """Return the `traceparent` of a Triton request.

    Return "" if the request is not traced, or if its `traceparent` does not have four parts.
    """
    context = request.trace().get_context()
    if not context:
        return ""
    trace_parent = json.loads(context).get("traceparent", "")
    return trace_parent if str(trace_parent).count("-") == 3 else ""
