"""Write chunks of a streamed response to the client's connection without a task switch."""

from __future__ import annotations

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# The key of the `ResponseBody` in the ASGI scope.
SCOPE_KEY = "tllm.response_body"


class ResponseBody:
    """The body of a response that uvicorn sends with chunked transfer coding.

    ASGI's `send` must be awaited, which callbacks cannot do. While the client reads fast enough,
    the callbacks that receive tokens therefore call `write` instead.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_writable(self) -> bool:
        """True if the headers have been sent and a chunk can be written without waiting."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        """Write `data` as one chunk. Call this method only if `is_writable` is true."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """Close the connection immediately and discard the data that has not been sent."""
        self._cycle.transport.abort()


def find_response_body(scope: Scope) -> ResponseBody | None:
    """Return the response body of a request, or None if the server did not provide one."""
    body: ResponseBody | None = scope.get(SCOPE_KEY)
    return body
