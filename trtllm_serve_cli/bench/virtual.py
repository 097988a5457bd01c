"""A benchmark without a server or a clock: the requests of a run through simulated engines.

Events are taken in the order of their virtual times, and each engine is driven by the scheduler of
the engine kind `sim`. A request that is sent reaches an engine `request_s` later: of several, the
one with the fewest requests in flight, the first of those. An engine that is idle begins a step
with all that has come by then; one that is at work takes what has come when its step ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from trtllm_serve_cli.bench.records import RequestError, RequestRecord
from trtllm_serve_cli.runtime.sim_scheduler import Scheduler, SimRequest, find_problem
from trtllm_serve_cli.runtime.sim_timing import Simulation


class Lengths(Protocol):
    """What a simulated engine needs to know of a request."""

    @property
    def input_ids(self) -> Any: ...

    @property
    def num_output_tokens(self) -> int: ...


def run_virtual(
    requests: Sequence[Lengths],
    simulation: Simulation,
    *,
    due_s: Sequence[float] | None = None,
    concurrency: int | None = None,
    replicas: int = 1,
    stream: bool = True,
    seed: int = 0,
) -> tuple[RequestRecord, ...]:
    """The record of every request, in their order, as a load generator would have them.

    With `due_s`, which is sorted, an open loop; without, a closed one: the next request is due when
    one ends. At most `concurrency` are in flight. `replicas` are engines of their own; `seed` is of
    their jitter.
    """
    engines = [_Engine(Scheduler(simulation, seed=seed + each)) for each in range(replicas)]
    clock = _VirtualClock(requests, simulation, engines, due_s, concurrency or len(requests))
    clock.run()
    return tuple(answer.to_record(stream=stream) for answer in clock.answers)


@dataclass(slots=True)
class _Answer:
    """What has come of one request by now."""

    index: int
    num_input_tokens: int
    due_s: float
    sent_s: float
    token_s: list[float] = field(default_factory=list)
    error: RequestError | None = None

    def to_record(self, *, stream: bool) -> RequestRecord:
        times = self.token_s
        chunks = tuple(times) if stream else tuple(times[-1:])
        tokens = (1,) * len(times) if stream else (len(times),) * bool(times)
        end_s = times[-1] if times else self.sent_s
        return RequestRecord(
            self.index,
            self.due_s,
            self.sent_s,
            end_s,
            self.num_input_tokens,
            chunks,
            tokens,
            self.error,
        )


@dataclass(slots=True, eq=False)
class _Engine:
    """`tokens` are of the step that it is in; None between steps."""

    scheduler: Scheduler
    tokens: Sequence[SimRequest] | None = None


@dataclass(slots=True)
class _VirtualClock:
    requests: Sequence[Lengths]
    simulation: Simulation
    engines: Sequence[_Engine]
    due_s: Sequence[float] | None
    concurrency: int
    answers: list[_Answer] = field(default_factory=list)
    num_in_flight: int = 0
    # The request that the clock wakes up for.
    expected: int = -1
    # When, in which order it was thought of, and what: a request arrives, the step of an engine
    # ends, or (None) the next request is due.
    events: list[tuple[float, int, SimRequest | _Engine | None]] = field(default_factory=list)
    order: count[int] = field(default_factory=count)

    def run(self) -> None:
        """Until nothing is left to happen."""
        self._at(self.due_s[0] if self.due_s else 0.0, None)
        while self.events:
            now_s = self.events[0][0]
            while self.events and self.events[0][0] == now_s:
                match heapq.heappop(self.events)[2]:
                    case SimRequest() as request:
                        self._arrive(request)
                    case _Engine() as engine:
                        self._end_step(engine, now_s)
            self._send(now_s)
            for engine in self.engines:
                if engine.tokens is None and engine.scheduler.has_work:
                    step = engine.scheduler.step()
                    engine.tokens = step.tokens
                    self._at(now_s + step.duration_s, engine)

    def _at(self, when_s: float, what: SimRequest | _Engine | None) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), what))

    def _send(self, now_s: float) -> None:
        """Send what is due, as far as the cap lets it, and wake up when the next one is."""
        while len(self.answers) < len(self.requests) and self.num_in_flight < self.concurrency:
            index = len(self.answers)
            due_s = now_s if self.due_s is None else self.due_s[index]
            if due_s > now_s:
                if index != self.expected:
                    self.expected = index
                    self._at(due_s, None)
                return
            self._send_one(index, due_s, now_s)

    def _send_one(self, index: int, due_s: float, now_s: float) -> None:
        wanted = self.requests[index]
        input_ids = wanted.input_ids.tolist()
        answer = _Answer(index, len(input_ids), due_s, now_s)
        self.answers.append(answer)
        request = SimRequest(index, input_ids, wanted.num_output_tokens)
        problem = find_problem(self.simulation.limits, len(input_ids), wanted.num_output_tokens)
        if problem is not None:
            answer.error = RequestError("server", problem)
            return
        self.num_in_flight += 1
        if delay_s := self.simulation.timing.request_s:
            self._at(now_s + delay_s, request)
        else:
            self._arrive(request)

    def _arrive(self, request: SimRequest) -> None:
        least_busy = min(self.engines, key=lambda engine: engine.scheduler.num_requests)
        least_busy.scheduler.submit(request)

    def _end_step(self, engine: _Engine, now_s: float) -> None:
        for request in engine.tokens or ():
            self.answers[request.id].token_s.append(now_s)
            if request.is_done:
                self.num_in_flight -= 1
        engine.tokens = None
