"""Limit the size of request headers and the time for receiving them.

uvicorn passes a request to the application only after receiving all headers. It has neither a size
limit nor a timeout for headers, so a client could occupy connections and memory by sending headers
that never end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.response_body import SCOPE_KEY, ResponseBody

# Maximum number of bytes per `data_received` call. The bytes may include the end of the previous
# request, so headers are rejected only if they exceed the limit by more than this number.
_READ_BYTES = 256 * 1024


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed if headers exceed `max_header_bytes` or time out.

    `limit_connections` returns a subclass that sets `max_header_bytes` and `timeout_s`. The limit
    for incomplete headers is approximate; `Guard` checks the exact size of complete headers.
    """

    max_header_bytes: int
    timeout_s: float

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._num_bytes = 0
        super().on_headers_complete()
        # The task that handles the request cannot start until this method returns. When the task
        # starts, the scope therefore contains the `ResponseBody`.
        if self.cycle is not None:
            self.cycle.scope[SCOPE_KEY] = ResponseBody(self.cycle)  # type: ignore[literal-required]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is None:
            return
        self._num_bytes += len(data)
        if self._num_bytes > self.max_header_bytes + _READ_BYTES:
            message = (
                f"The request headers exceed {self.max_header_bytes} bytes. Send fewer or shorter "
                "headers."
            )
            self._reject(ApiError(431, message))

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # The response to the previous request is not complete yet, so keep the connection open.
            self._start_timer()
        elif self._num_bytes:
            message = (
                f"The request headers did not arrive within {self.timeout_s:g} s. Retry the "
                "request."
            )
            self._reject(ApiError(408, message, code="request_timeout"))
        else:
            self.transport.close()

    def _reject(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        body = error.body()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.transport.close()


def limit_connections(max_header_bytes: int, timeout_s: float) -> type[HttpConnection]:
    """Return a protocol class for uvicorn that enforces a maximum header size and a timeout."""
    limits = {"max_header_bytes": max_header_bytes, "timeout_s": timeout_s}
    return type("LimitedHttpConnection", (HttpConnection,), limits)
