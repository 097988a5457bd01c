"""Run requests on simulated engines, with a clock that advances from one event to the next.

Each engine uses the scheduler of the `sim` engine kind. A request arrives `request_s` seconds after
it was sent. It is then queued on the engine with the fewest requests. If several engines are tied,
the request is queued on the first of them. An idle engine immediately starts a step with the
requests that have arrived, within the scheduler's limits. A busy engine adds new requests when its
current step ends. A request that the engines reject fails immediately, but counts as in flight for
`REFUSED_PAUSE_S` more seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from trtllm_serve_cli.bench.generator.load_generator import REFUSED_PAUSE_S
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.runtime.engines.sim.scheduler import Scheduler, SimRequest, find_problem
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation


@dataclass(frozen=True, slots=True)
class SendSchedule:
    """A schedule for sending requests, as in `worker_plan.Share`.

    In an open loop, `due_s` contains the due times in ascending order, and `concurrency` is an
    optional limit on the requests in flight. In a closed loop, `due_s` is `None`, and `concurrency`
    is the number of requests in flight, which increases linearly during the first `ramp_s` seconds.
    After `duration_s`, a closed loop sends only the later turns of running conversations. In an
    open loop, `duration_s` has no effect, and `ramp_s` only marks requests that are due in a ramp.
    """

    due_s: Sequence[float] | None = None
    concurrency: int | None = None
    ramp_s: float = 0.0
    duration_s: float | None = None


def run_simulated(
    specs: Iterable[RequestSpec],
    simulation: Simulation,
    schedule: SendSchedule,
    *,
    replicas: int = 1,
    stream: bool = True,
    seed: int = 0,
) -> tuple[RequestRecord, ...]:
    """Simulate the requests in `specs` and return their records, sorted by request and turn.

    Each request must have a single prompt of token ids. `replicas` is the number of engines. If
    `stream` is false, each response contains all of its tokens in a single chunk. `seed` determines
    the random variation of step durations.
    """
    engines = [_Engine(Scheduler(simulation, seed=seed + each)) for each in range(replicas)]
    clock = _VirtualClock(iter(specs), simulation, engines, schedule)
    clock.run()
    answers = sorted(clock.answers, key=lambda each: (each.conversation.index, each.turn))
    return tuple(answer.to_record(schedule, stream=stream) for answer in answers)


@dataclass(slots=True, eq=False)
class _Conversation:
    """A request and the later turns of its conversation.

    `prompt` contains all tokens of the conversation so far. `num_turns` is the number of requests
    that have been sent.
    """

    index: int
    spec: RequestSpec
    prompt: list[int]
    held_s: float
    num_turns: int = 0


@dataclass(slots=True)
class _Answer:
    """A request and the times at which the tokens of its response were generated."""

    conversation: _Conversation
    turn: int
    num_input_tokens: int
    due_s: float
    sent_s: float
    held_s: float
    token_s: list[float] = field(default_factory=list)
    error: RequestError | None = None

    def to_record(self, schedule: SendSchedule, *, stream: bool) -> RequestRecord:
        times = self.token_s
        tokens = (1,) * len(times) if stream else (len(times),) * bool(times)
        return RequestRecord(
            index=self.conversation.index,
            due_s=self.due_s,
            sent_s=self.sent_s,
            end_s=times[-1] if times else self.sent_s,
            num_input_tokens=self.num_input_tokens,
            chunk_s=tuple(times) if stream else tuple(times[-1:]),
            chunk_tokens=tokens,
            error=self.error,
            held_s=self.held_s,
            conversation=self.conversation.index if self.conversation.spec.turns else None,
            turn=self.turn,
            is_ramp=self.due_s < schedule.ramp_s,
        )


@dataclass(slots=True, eq=False)
class _Engine:
    """A simulated engine.

    `tokens` contains the requests that receive a token at the end of the current step. Between
    steps, `tokens` is `None`.
    """

    scheduler: Scheduler
    tokens: Sequence[SimRequest] | None = None


# A `SimRequest` that arrives, an `_Engine` that finishes a step, a `_Conversation` whose next turn
# is due, or a rejected `_Answer` whose slot becomes free. `None` only wakes the clock to send due
# requests.
_Event = SimRequest | _Engine | _Conversation | _Answer | None


@dataclass(slots=True)
class _VirtualClock:
    specs: Iterator[RequestSpec]
    simulation: Simulation
    engines: Sequence[_Engine]
    schedule: SendSchedule
    answers: list[_Answer] = field(default_factory=list)
    num_started: int = 0
    num_in_flight: int = 0
    # The time of the last scheduled wake-up, stored to avoid duplicate wake-ups at that time.
    wakeup_s: float = -1.0
    # A heap of (time, sequence number, event).
    events: list[tuple[float, int, _Event]] = field(default_factory=list)
    order: count[int] = field(default_factory=count)

    def run(self) -> None:
        """Process events until the heap is empty."""
        self._schedule(0.0, None)
        while self.events:
            now_s = self.events[0][0]
            while self.events and self.events[0][0] == now_s:
                self._handle(heapq.heappop(self.events)[2], now_s)
            if self.schedule.due_s is None:
                self._send_closed(now_s)
            else:
                self._send_open(self.schedule.due_s, now_s)
            for engine in self.engines:
                if engine.tokens is None and engine.scheduler.has_work:
                    step = engine.scheduler.step()
                    engine.tokens = step.tokens
                    self._schedule(now_s + step.duration_s, engine)

    def _schedule(self, at_s: float, event: _Event) -> None:
        heapq.heappush(self.events, (at_s, next(self.order), event))

    def _handle(self, event: _Event, now_s: float) -> None:
        match event:
            case SimRequest():
                self._arrive(event)
            case _Engine():
                self._end_step(event, now_s)
            case _Conversation():
                self._send(event, now_s, now_s)
            case _Answer():
                self.num_in_flight -= 1

    def _send_open(self, due_s: Sequence[float], now_s: float) -> None:
        """Send due requests up to the concurrency limit and schedule the next wake-up."""
        cap = self.schedule.concurrency
        while self.num_started < len(due_s) and (cap is None or self.num_in_flight < cap):
            due = due_s[self.num_started]
            if due > now_s:
                self._wake_at(due)
                return
            self._start_next(due, now_s)

    def _send_closed(self, now_s: float) -> None:
        """Send requests up to the concurrency limit, which increases during a ramp."""
        num_slots, duration_s = self.schedule.concurrency or 1, self.schedule.duration_s
        if duration_s is not None and now_s >= duration_s:
            return
        if gap_s := self.schedule.ramp_s / num_slots:
            num_open = min(num_slots, int(now_s / gap_s + 1e-9) + 1)
            if num_open < num_slots:
                self._wake_at(num_open * gap_s)
            num_slots = num_open
        while self.num_in_flight < num_slots and self._start_next(now_s, now_s):
            pass

    def _wake_at(self, at_s: float) -> None:
        if at_s != self.wakeup_s:
            self.wakeup_s = at_s
            self._schedule(at_s, None)

    def _start_next(self, due_s: float, now_s: float) -> bool:
        """Send the next request. Return `False` if no requests remain."""
        spec = next(self.specs, None)
        if spec is None:
            return False
        prompt = spec.input_ids.ravel().tolist()
        conversation = _Conversation(self.num_started, spec, prompt, now_s - due_s)
        self.num_started += 1
        self.num_in_flight += 1
        self._send(conversation, due_s, now_s)
        return True

    def _send(self, conversation: _Conversation, due_s: float, now_s: float) -> None:
        """Send the first request or the next turn of a conversation."""
        turn_number, conversation.num_turns = conversation.num_turns, conversation.num_turns + 1
        turn = conversation.spec.turns[turn_number - 1] if turn_number else conversation.spec
        if turn_number:
            conversation.prompt = [*conversation.prompt, *turn.input_ids.tolist()]
        held_s = 0.0 if turn_number else conversation.held_s
        answer = _Answer(conversation, turn_number, len(conversation.prompt), due_s, now_s, held_s)
        request = SimRequest(len(self.answers), conversation.prompt, turn.num_output_tokens)
        self.answers.append(answer)
        problem = find_problem(
            self.simulation.limits, len(conversation.prompt), turn.num_output_tokens
        )
        if problem is not None:
            answer.error = RequestError("server", problem)
            # Otherwise, a closed loop with a time limit would send requests forever at this time.
            self._schedule(now_s + REFUSED_PAUSE_S, answer)
        elif delay_s := self.simulation.timing.request_s:
            self._schedule(now_s + delay_s, request)
        else:
            self._arrive(request)

    def _arrive(self, request: SimRequest) -> None:
        least_busy = min(self.engines, key=lambda engine: engine.scheduler.num_requests)
        least_busy.scheduler.submit(request)

    def _end_step(self, engine: _Engine, now_s: float) -> None:
        for request in engine.tokens or ():
            answer = self.answers[request.id]
            answer.token_s.append(now_s)
            if request.is_done:
                self._continue_conversation(answer.conversation, request.max_new_tokens, now_s)
        engine.tokens = None

    def _continue_conversation(
        self, conversation: _Conversation, num_tokens: int, now_s: float
    ) -> None:
        """Schedule the next turn after the think time, or end the conversation."""
        if conversation.num_turns > len(conversation.spec.turns):
            self.num_in_flight -= 1
            return
        # Represent generated tokens by an id that no other conversation uses. Otherwise, prompts
        # in other conversations would reuse the KV-cache blocks of these tokens.
        conversation.prompt = [*conversation.prompt, *[-1 - conversation.index] * num_tokens]
        self._schedule(
            now_s + conversation.spec.turns[conversation.num_turns - 1].think_s, conversation
        )
