"""The load generator: sends requests at absolute deadlines and stamps what comes back.

An open loop never waits for the server: a request is due when it is due, and its latency counts
from then even if this process was late to send it. That lateness is recorded as schedule lag.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trtllm_serve_cli.bench.core_model import Send, SendFailed
from trtllm_serve_cli.bench.records import INTERRUPTED, RequestError, RequestRecord
from trtllm_serve_cli.bench.wire import Response


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request ready to go: nothing is left to compute when it is due."""

    index: int
    payload: bytes
    num_input_tokens: int


@dataclass(slots=True)
class LoadGenerator:
    """Sends requests and collects their records, in the order in which they end.

    The counts may be read at any time, to show progress. Cancelling one of the `run_` methods keeps
    the records; requests in flight are then recorded as interrupted.
    """

    send: Send
    decode: Callable[[bytes], Response]
    clock: Callable[[], float] = time.perf_counter
    records: list[RequestRecord] = field(default_factory=list)
    num_sent: int = 0
    num_failed: int = 0
    start: float = 0.0

    async def run_open(self, requests: Sequence[EncodedRequest], due_s: Iterable[float]) -> None:
        """Send each request when it is due, in seconds from now; returns when all have ended."""
        self.start = self.clock()
        tasks: list[asyncio.Task[None]] = []
        try:
            for request, due in zip(requests, due_s, strict=True):
                wait_s = due - self._now()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                tasks.append(asyncio.create_task(self._exchange(request, due)))
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def run_closed(self, requests: Sequence[EncodedRequest], concurrency: int) -> None:
        """Keep `concurrency` requests in flight; each is due when the one before it ends."""
        self.start = self.clock()
        waiting = iter(requests)

        async def take_turns() -> None:
            for request in waiting:
                await self._exchange(request, self._now())

        tasks = [asyncio.create_task(take_turns()) for _ in range(min(concurrency, len(requests)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    def _now(self) -> float:
        return self.clock() - self.start

    async def _exchange(self, request: EncodedRequest, due_s: float) -> None:
        self.num_sent += 1
        sent_s = self._now()
        answer = _Answer(end_s=sent_s)
        try:
            async for raw in self.send(request.payload):
                at_s = self._now()
                answer.add(self.decode(raw), at_s)
        except SendFailed as failure:
            answer.fail(failure.error, self._now())
        except asyncio.CancelledError:
            answer.fail(RequestError(INTERRUPTED), self._now())
            raise
        finally:
            self._keep(answer.to_record(request, due_s, sent_s))

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.num_failed += not (record.is_completed or record.is_interrupted)


@dataclass(slots=True)
class _Answer:
    """What has come back of one request; nothing counts after its final response."""

    end_s: float
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    error: RequestError | None = None
    is_final: bool = False

    def add(self, response: Response, at_s: float) -> None:
        if self.is_final:
            return
        self.end_s, self.is_final = at_s, response.is_final
        if response.num_tokens:
            self.chunk_s.append(at_s)
            self.chunk_tokens.append(response.num_tokens)
        if response.error is not None:
            self.error = RequestError("server", response.error)

    def fail(self, error: RequestError, at_s: float) -> None:
        if not self.is_final:
            self.end_s, self.error, self.is_final = at_s, error, True

    def to_record(self, request: EncodedRequest, due_s: float, sent_s: float) -> RequestRecord:
        error = self.error
        if error is None and not self.chunk_s:
            error = RequestError("no_tokens", "the answer ended without a token")
        return RequestRecord(
            index=request.index,
            due_s=due_s,
            sent_s=sent_s,
            end_s=self.end_s,
            num_input_tokens=request.num_input_tokens,
            chunk_s=tuple(self.chunk_s),
            chunk_tokens=tuple(self.chunk_tokens),
            error=error,
        )


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
