"""How requests travel to a model, whatever carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from trtllm_serve_cli.bench.records import RequestError
from trtllm_serve_cli.bench.wire import Response
from trtllm_serve_cli.bench.workloads import RequestSpec


class SendFailed(Exception):
    """A request has ended without its final response."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Connection(Protocol):
    """To one model of one server, for many requests at once."""

    def encode(self, spec: RequestSpec, request_id: str) -> bytes: ...

    def send(self, payload: bytes) -> AsyncIterator[bytes]:
        """The responses as they arrive, undecoded; raises `SendFailed`."""

    def decode(self, raw: bytes) -> Response: ...

    async def close(self) -> None: ...
