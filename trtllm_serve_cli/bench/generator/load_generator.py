"""Send requests when they are due and timestamp the responses.

An open loop sends requests without waiting for earlier responses, unless a concurrency cap is set.
Latency is measured from a request's due time, so it includes any delay in sending the request. The
schedule lag metric measures this delay, except for the part that a concurrency cap causes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trtllm_serve_cli.bench.model.records import (
    INTERRUPTED,
    NO_CONNECTION,
    REJECTED,
    RequestError,
    RequestRecord,
    spread_tokens,
)
from trtllm_serve_cli.bench.transport.codec import Response
from trtllm_serve_cli.bench.transport.connection import Connection, SendFailed
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.transport.error_mapping import is_rejection

# A server counts as lost after at least `_GIVE_UP_COUNT` consecutive connection failures that span
# at least `GIVE_UP_S` seconds.
GIVE_UP_S = 5.0
_GIVE_UP_COUNT = 3
# Pause after a refused connection, in seconds. Without the pause, a closed loop would exhaust its
# requests and overload the CPU within milliseconds, because refused connections fail immediately.
REFUSED_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class ReadyRequest:
    """An encoded request that is ready to be sent.

    `index` is the request's index in the whole run. `payload` is the encoded `spec`. `target` is
    the index of the connection that sends the request.
    """

    index: int
    payload: bytes
    spec: RequestSpec
    target: int = 0


@dataclass(slots=True)
class LoadGenerator:
    """A load generator and the records of its requests.

    If `run_open` or `run_closed` is cancelled, the requests in flight are recorded as interrupted.
    If every contacted target is unreachable, `is_server_lost` is true and no more requests are
    sent.

    - `ramp_s` is the duration of the ramp. Requests that are due during the ramp are marked as ramp
      requests.
    - `give_up_s` is how long connection failures must last before a target counts as lost.
    - `keeps_text` determines whether `texts` stores the texts of responses without a token count.
    - `records` contains the records in order of completion.
    - `num_sent`, `num_failed` and `num_uncounted` are updated during the run.
    - `start` is the run's start time on `clock`. It may be in the future.
    """

    connections: Sequence[Connection]
    clock: Callable[[], float] = time.perf_counter
    ramp_s: float = 0.0
    give_up_s: float = GIVE_UP_S
    keeps_text: bool = False
    records: list[RequestRecord] = field(default_factory=list)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    num_sent: int = 0
    num_failed: int = 0
    num_uncounted: int = 0
    start: float = 0.0
    _contacted: set[int] = field(default_factory=set)
    _refusals: dict[int, list[float]] = field(default_factory=dict)

    @property
    def is_server_lost(self) -> bool:
        if not self._contacted or self._contacted != self._refusals.keys():
            return False
        return all(
            len(times) >= _GIVE_UP_COUNT and times[-1] - times[0] >= self.give_up_s
            for times in self._refusals.values()
        )

    async def run_open(
        self,
        requests: Iterable[ReadyRequest],
        due_s: Iterable[float],
        concurrency: int | None = None,
        start: float | None = None,
    ) -> None:
        """Send each request when it is due and return when all requests have finished.

        The times in `due_s` are in seconds from `start`. `concurrency` limits the requests in
        flight, where a conversation counts as one request. The limit may delay a request but does
        not change its due time.
        """
        self.start = self.clock() if start is None else start
        slots = None if concurrency is None else asyncio.Semaphore(concurrency)
        tasks: set[asyncio.Task[None]] = set()
        # The time when the concurrency cap last released a waiting request. The cap delays every
        # later request that was due before this time.
        freed_s = 0.0

        def forget(task: asyncio.Task[None]) -> None:
            # Keep failed tasks in the set, so that `gather` raises their exceptions.
            if task.cancelled() or task.exception() is None:
                tasks.discard(task)

        try:
            for request, due in zip(requests, due_s, strict=True):
                wait_s = due - self._now()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                if slots is not None:
                    if slots.locked():
                        await slots.acquire()
                        freed_s = self._now()
                    else:
                        await slots.acquire()
                if self.is_server_lost:
                    break
                task = asyncio.create_task(
                    self._run_conversation(request, due, max(freed_s - due, 0.0), slots)
                )
                tasks.add(task)
                task.add_done_callback(forget)
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def run_closed(
        self,
        requests: Iterable[ReadyRequest],
        concurrency: int,
        duration_s: float | None = None,
        start: float | None = None,
    ) -> None:
        """Keep `concurrency` requests in flight: when one finishes, the next one is due.

        After `duration_s`, only the later turns of running conversations are sent. During the ramp,
        the number of requests in flight increases linearly.
        """
        self.start = self.clock() if start is None else start
        waiting = iter(requests)

        async def fill_slot(open_s: float) -> None:
            await asyncio.sleep(max(open_s - self._now(), 0.0))
            while duration_s is None or self._now() < duration_s:
                request = next(waiting, None)
                if request is None or self.is_server_lost:
                    return
                await self._run_conversation(request, max(self._now(), open_s))
                if request.target in self._refusals:
                    await asyncio.sleep(REFUSED_PAUSE_S)

        gap_s = self.ramp_s / concurrency
        tasks = [asyncio.create_task(fill_slot(slot * gap_s)) for slot in range(concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    def _now(self) -> float:
        return self.clock() - self.start

    async def _run_conversation(
        self,
        request: ReadyRequest,
        due_s: float,
        held_s: float = 0.0,
        slots: asyncio.Semaphore | None = None,
    ) -> None:
        """Send a request, then the later turns of its conversation one after another.

        A failed request ends the conversation.
        """
        try:
            answer = await self._exchange(request, request.payload, request.spec, due_s, held_s)
            prompt = request.spec.input_ids
            connection = self.connections[request.target]
            for number, turn in enumerate(request.spec.turns, 1):
                if answer.error is not None:
                    return
                prompt = np.concatenate((prompt, answer.ids(), turn.input_ids))
                spec = RequestSpec(prompt, turn.num_output_tokens)
                payload = connection.encode(spec, f"tllm-bench-{request.index}-{number}")
                due = answer.end_s + turn.think_s
                await asyncio.sleep(max(due - self._now(), 0.0))
                answer = await self._exchange(request, payload, spec, due, 0.0, number)
        finally:
            if slots is not None:
                slots.release()

    async def _exchange(
        self,
        request: ReadyRequest,
        payload: bytes,
        spec: RequestSpec,
        due_s: float,
        held_s: float,
        turn: int = 0,
    ) -> _Answer:
        connection = self.connections[request.target]
        self.num_sent += 1
        self._contacted.add(request.target)
        sent_s = self._now()
        answer = _Answer(
            end_s=sent_s,
            keeps_ids=bool(request.spec.turns),
            num_prompt_tokens=connection.count_prompt_tokens(spec),
            end_id=spec.end_id,
        )
        try:
            async for received_s, raw in connection.send(payload):
                answer.add(connection.decode(raw), received_s - self.start)
        except SendFailed as failure:
            answer.fail(failure.error, self._now())
        except asyncio.CancelledError:
            answer.fail(RequestError(INTERRUPTED), self._now())
            raise
        finally:
            if answer.error is None and not answer.has_parts:
                answer.error = RequestError("no_response", "the call ended without a response")
            self._keep(
                RequestRecord(
                    index=request.index,
                    due_s=due_s,
                    sent_s=sent_s,
                    end_s=answer.end_s,
                    num_input_tokens=answer.num_input_tokens or spec.input_ids.size,
                    chunk_s=tuple(answer.chunk_s),
                    chunk_tokens=tuple(answer.chunk_tokens),
                    error=answer.error,
                    held_s=held_s,
                    queue_s=answer.queue_s,
                    target=request.target,
                    conversation=request.index if request.spec.turns else None,
                    turn=turn,
                    is_ramp=due_s < self.ramp_s,
                )
            )
            # Skip failed requests, which may end before the server reports the number of tokens.
            if not answer.is_counted and answer.error is None:
                self.num_uncounted += 1
                if self.keeps_text:
                    self.texts[request.index, turn] = "".join(answer.texts)
        return answer

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.num_failed += not (record.is_completed or record.is_interrupted)
        if record.error is not None and record.error.kind == NO_CONNECTION:
            self._refusals.setdefault(record.target, []).append(record.end_s)
        elif not record.is_interrupted:
            self._refusals.pop(record.target, None)


@dataclass(slots=True)
class _Answer:
    """The parts of a response received so far.

    Parts that follow the final part are ignored. If the model returns text, a part with tokens but
    without text does not count as a chunk. Its tokens are added to the next chunk. If no text
    follows, they are added to the last chunk or, without an earlier chunk, form a new chunk. The
    first `num_prompt_tokens` tokens are the prompt and are not counted. In a response that may be
    padded, the first `end_id` after the prompt and all later tokens are not counted, either. If the
    total that the server reports differs from the number of counted tokens, the server's total is
    distributed evenly across the chunks.
    """

    end_s: float
    keeps_ids: bool = False
    num_prompt_tokens: int = 0
    end_id: int | None = None
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    error: RequestError | None = None
    has_parts: bool = False
    is_final: bool = False
    is_counted: bool = True
    num_input_tokens: int | None = None
    queue_s: float | None = None
    texts: list[str] = field(default_factory=list)
    _ids: list[bytes] = field(default_factory=list)
    _uncounted_tokens: int = 0
    _total_tokens: int | None = None

    def add(self, response: Response, at_s: float) -> None:
        if self.is_final:
            return
        self.end_s, self.is_final, self.has_parts = at_s, response.is_final, True
        if self.num_prompt_tokens:
            response = self._without_prompt(response)
        if response.is_padded and self.end_id is not None:
            response = self._without_padding(response, self.end_id)
        num_tokens = response.num_tokens + self._uncounted_tokens
        if num_tokens and (response.text is None or response.text):
            self.chunk_s.append(at_s)
            self.chunk_tokens.append(num_tokens)
            self._uncounted_tokens = 0
        else:
            self._uncounted_tokens = num_tokens
        if response.is_final and self._uncounted_tokens:
            self._add_remaining_tokens(at_s)
        self._add_metadata(response)
        if response.is_final and self._total_tokens is not None:
            self._set_total_tokens(self._total_tokens, at_s)
        if response.error is not None:
            kind = REJECTED if is_rejection(response.error) else "server"
            self.error = RequestError(kind, response.error)

    def fail(self, error: RequestError, at_s: float) -> None:
        if not self.is_final:
            self.end_s, self.error, self.is_final = at_s, error, True

    def ids(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the generated token ids. They are stored only if `keeps_ids` is true."""
        return np.frombuffer(b"".join(self._ids), np.int32)

    def _without_prompt(self, response: Response) -> Response:
        num_removed = min(self.num_prompt_tokens, response.num_tokens)
        self.num_prompt_tokens -= num_removed
        return replace(
            response,
            num_tokens=response.num_tokens - num_removed,
            ids=response.ids[4 * num_removed :],
        )

    def _without_padding(self, response: Response, end_id: int) -> Response:
        ids = np.frombuffer(response.ids, np.int32)
        ends = np.flatnonzero(ids == end_id)
        if not ends.size:
            return response
        return replace(response, num_tokens=int(ends[0]), ids=ids[: ends[0]].tobytes())

    def _add_remaining_tokens(self, at_s: float) -> None:
        """Add tokens received after the last text to the last chunk, or to a new chunk."""
        if self.chunk_s:
            self.chunk_tokens[-1] += self._uncounted_tokens
        else:
            self.chunk_s.append(at_s)
            self.chunk_tokens.append(self._uncounted_tokens)

    def _set_total_tokens(self, num_tokens: int, at_s: float) -> None:
        """Adjust the chunks' token counts to match the total that the server reported."""
        self.is_counted = True
        if sum(self.chunk_tokens) == num_tokens:
            return
        if not self.chunk_s:
            self.chunk_s.append(at_s)
        self.chunk_tokens = [*spread_tokens(num_tokens, len(self.chunk_s))]

    def _add_metadata(self, response: Response) -> None:
        self.is_counted = self.is_counted and response.is_counted
        if response.num_input_tokens is not None:
            self.num_input_tokens = response.num_input_tokens
        if response.total_tokens is not None:
            self._total_tokens = response.total_tokens
        if response.queue_s is not None:
            self.queue_s = response.queue_s
        if self.keeps_ids and response.ids:
            self._ids.append(response.ids)
        if not response.is_counted and response.text:
            self.texts.append(response.text)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
