"""A fake OpenTelemetry collector that receives OTLP as JSON over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class ReceivedSpan:
    """A span. Ids are hexadecimal; `parent_id` is "" for the root of a trace."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    attributes: dict[str, str]


class ReceivedSpans:
    """The spans received so far."""

    def __init__(self) -> None:
        self.url = ""
        self.messages: list[dict[str, Any]] = []

    def spans(self) -> list[ReceivedSpan]:
        return [
            _read(span)
            for message in list(self.messages)
            for resource in message["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


def _read(span: dict[str, Any]) -> ReceivedSpan:
    attributes = {each["key"]: str(next(iter(each["value"].values())))
                  for each in span.get("attributes", ())}  # fmt: skip
    return ReceivedSpan(
        span["name"], span["traceId"], span["spanId"], span.get("parentSpanId") or "", attributes
    )


@contextmanager
def collector() -> Iterator[ReceivedSpans]:
    """Run a collector on a free port."""
    received = ReceivedSpans()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.messages.append(json.loads(body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
