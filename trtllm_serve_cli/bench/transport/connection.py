"""How requests travel to a model, whatever carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

from trtllm_serve_cli.bench.model.records import TIMED_OUT, RequestError
from trtllm_serve_cli.bench.transport.codec import Response
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

TIMEOUT_ERROR = RequestError(TIMED_OUT, "not whole in the time that a request has")
# When the bytes of a response came, on `time.perf_counter`, and these.
Arrival = tuple[float, bytes]
_T = TypeVar("_T")


class SendFailed(Exception):
    """A request has ended without its final response."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Connection(Protocol):
    """To one model of one server, for many requests at once."""

    def encode(self, spec: RequestSpec, request_id: str) -> bytes: ...

    def send(self, payload: bytes) -> AsyncIterator[Arrival]:
        """The responses as they arrive, undecoded; raises `SendFailed`."""

    def decode(self, raw: bytes) -> Response: ...

    async def close(self) -> None: ...


async def with_timeout(awaitable: Coroutine[Any, Any, _T], timeout_s: float | None) -> _T:
    """What it gives; raises `SendFailed` when that takes longer.

    A task of its own: for what a request has to wait for before it is on its way.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise SendFailed(TIMEOUT_ERROR)
        return task.result()
    finally:
        task.cancel()
