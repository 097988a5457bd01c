"""Clients of an engine worker whose requests a test can wait for."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.generation.worker_backend import WorkerBackend
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.worker.worker_link import SharedWorkerClient, WorkerFailed

_RECONNECT_S = 0.001
_Result = TypeVar("_Result")
# Raised by `submit` while no worker is connected.
NOT_CONNECTED = (ApiError, WorkerFailed)


class MessageClient(Protocol):
    @property
    def is_open(self) -> bool: ...

    def submit(self, fields: Any, on_update: Callable[[SequenceUpdate], None]) -> int: ...

    def cancel(self, request_id: int) -> None: ...


class _GatewayClient:
    """The gateway's backend in the event loop of another thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._backend = self._call(
            lambda: WorkerBackend(lambda: name, LetterTokenizer(), reconnect_s=_RECONNECT_S)
        )

    @property
    def is_open(self) -> bool:
        return self._backend.is_open

    def submit(self, fields: Any, on_update: Callable[[SequenceUpdate], None]) -> int:
        return self._call(lambda: self._backend.submit(fields, on_update))

    def cancel(self, request_id: int) -> None:
        self._call(lambda: self._backend.cancel(request_id))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._backend.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _call(self, function: Callable[[], _Result]) -> _Result:
        async def run() -> _Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)


@contextlib.contextmanager
def connected(kind: str, name: str) -> Iterator[MessageClient]:
    """Yield the gateway's or a model's client of the worker at the socket `name`."""
    client = (
        _GatewayClient(name)
        if kind == "gateway"
        else SharedWorkerClient(name, reconnect_s=_RECONNECT_S)
    )
    try:
        yield client
    finally:
        client.close()


class Answer:
    """The updates of a request with this number of sequences."""

    def __init__(self, client: MessageClient, command: int, *, num_sequences: int = 1) -> None:
        self._updates: queue.Queue[SequenceUpdate] = queue.Queue()
        self._num_sequences = num_sequences
        fields = {"input_ids": (command,), "max_new_tokens": 3,
                  "num_return_sequences": num_sequences}  # fmt: skip
        self.id = client.submit(fields, self._updates.put)

    def take(self) -> str | list[tuple[int, ...]]:
        """Wait until the request has ended. Return its error, or the tokens of its sequences."""
        tokens: dict[int, tuple[int, ...]] = {}
        num_ended = 0
        while num_ended < self._num_sequences:
            update = self._updates.get(timeout=30)
            if update.error is not None:
                return update.error
            index = update.sequence_index
            tokens[index] = tokens.get(index, ()) + update.token_ids
            num_ended += update.finish_reason is not None
        # A text model forgets a request that has ended. Until then, it may receive an error.
        assert not any(each.token_ids for each in self._updates.queue)
        return [tokens[index] for index in sorted(tokens)]
