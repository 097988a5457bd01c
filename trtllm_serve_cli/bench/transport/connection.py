"""Define the common interface of gRPC and HTTP connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

from trtllm_serve_cli.bench.model.records import TIMED_OUT, RequestError
from trtllm_serve_cli.bench.transport.codec import Response
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

TIMEOUT_ERROR = RequestError(TIMED_OUT, "the response did not complete within the timeout")
# A response's arrival time, as a value of `time.perf_counter()`, and its bytes.
Arrival = tuple[float, bytes]
_T = TypeVar("_T")


class SendFailed(Exception):
    """Raised if a request fails, with the reason in `error`."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Connection(Protocol):
    """A connection for many concurrent requests to one model on one server."""

    def encode(self, spec: RequestSpec, request_id: str) -> bytes: ...

    def count_prompt_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens at the start of the response."""

    def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        """Send a request and yield the arrival time and the bytes of each response.

        Raise `SendFailed` if the request fails.
        """

    def decode(self, raw: bytes) -> Response: ...

    async def close(self) -> None: ...


async def with_timeout(awaitable: Coroutine[Any, Any, _T], timeout_s: float | None) -> _T:
    """Return the result of a coroutine, or raise `SendFailed` if it exceeds the timeout.

    Connections use this function for operations that may wait before a request is sent, for example
    to connect to the server.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise SendFailed(TIMEOUT_ERROR)
        return task.result()
    finally:
        task.cancel()
