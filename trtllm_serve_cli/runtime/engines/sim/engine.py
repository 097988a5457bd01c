"""Implement an engine that returns meaningless tokens with simulated scheduling and timing.

The engine draws response tokens from the prompt, using the request's seed, so the response to a
text prompt is text. While the engine has requests, each step starts when the previous step ends.
Each step takes the simulated duration.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

from ...engine import (
    EngineLimits,
    EngineStats,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    PerfMetrics,
    PromptFacts,
    SequenceUpdate,
)
from ...triton.word_lists import ends_with_word
from ..kinds import explain_rejection
from .log_probs import make_alternatives, make_log_prob, score_tokens
from .scheduler import Scheduler, SimRequest, Step, count_blocks, find_problem
from .timing import SIMULATION_FILE, SchedulerLimits, Simulation, parse_limits, parse_simulation

_KIND = "sim"
# The time before the end of a wait, in seconds, at which the clock switches from sleeping to a busy
# loop. Without this loop, waits would be about 0.1 ms too long, because `time.sleep` returns late
# even on an idle machine.
_SPIN_S = 0.0002
# The limit is high, so that beam search requests fail with the error for unsupported features
# instead of an error about the beam width.
_MAX_BEAM_WIDTH = 64
# The minimum absolute value of a bias that bans or forces a token. Smaller biases are ignored.
_DECISIVE_BIAS = 100


class Clock(Protocol):
    """A monotonic clock with times in seconds."""

    def now_s(self) -> float: ...

    def wait_until(self, at_s: float) -> None: ...


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wait_until(self, at_s: float) -> None:
        """Wait until `at_s`, first by sleeping and then in a busy loop (see `_SPIN_S`)."""
        sleep_s = at_s - time.monotonic() - _SPIN_S
        if sleep_s > 0:
            time.sleep(sleep_s)
        while time.monotonic() < at_s:
            pass


def load_simulation(config: Mapping[str, Any]) -> Simulation:
    """Load the simulation from `simulation.json` in the `engine_dir` folder.

    Limits in `config` override the limits in `simulation.json`. Raise `ValueError` if
    `simulation.json` or a limit is invalid, or `OSError` if the file cannot be read.
    """
    path = Path(config["engine_dir"], SIMULATION_FILE)
    simulation = parse_simulation(path.read_text(encoding="utf-8"))
    overrides = {name: config[name] for name in SchedulerLimits.__slots__ if name in config}
    defaults = {name: getattr(simulation.limits, name) for name in SchedulerLimits.__slots__}
    return replace(simulation, limits=parse_limits({**defaults, **overrides}))


@dataclass(slots=True)
class _Sequence:
    """One sequence of a response.

    `tokens` contains the generated tokens if the request has stop or bad words. Otherwise, it stays
    empty, because the tokens are not searched. `last_token` is the last generated token, or the
    prompt's last token if no token has been generated yet.
    """

    rng: Random
    last_token: int
    tokens: list[int] = field(default_factory=list)
    cum_log_prob: float = 0.0
    is_done: bool = False


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    sim: SimRequest
    vocabulary: tuple[int, ...]
    sequences: list[_Sequence]
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0


class SimEngine:
    """An engine that generates tokens with the timing of a `Simulation`.

    `config` contains engine_dir, max_seq_len and vocab_size. It may also contain any field of
    `SchedulerLimits`.
    """

    def __init__(self, config: Mapping[str, Any], clock: Clock | None = None) -> None:
        self._simulation = load_simulation(config)
        self._clock: Clock = clock or RealClock()
        self._scheduler = Scheduler(self._simulation)
        self._running: dict[int, _Running] = {}
        self._iteration = 0
        self._num_blocks_reused = self._num_blocks_missed = 0
        self._context_tokens = 0
        # The time at which the previous step ended. If it is None, the next step is timed from the
        # call of `step`, because the engine was idle.
        self._next_start_s: float | None = None
        self.limits = EngineLimits(
            max_seq_len=int(config["max_seq_len"]),
            max_beam_width=_MAX_BEAM_WIDTH,
            vocab_size=int(config["vocab_size"]),
        )

    def submit(self, request: GenerationRequest) -> None:
        _check_servable(request)
        num_input, number = len(request.input_ids), request.num_return_sequences
        problem = find_problem(self._simulation.limits, num_input, request.max_new_tokens, number)
        if problem is not None:
            raise InvalidRequest(problem)
        if not self._scheduler.has_work:
            self._next_start_s = None
        sim = SimRequest(request.id, request.input_ids, request.max_new_tokens, number)
        sequences = [
            _Sequence(Random(f"{request.seed or 0} {each}"), request.input_ids[-1])
            for each in range(number)
        ]
        vocabulary = _choose_vocabulary(request, self.limits.vocab_size)
        self._running[request.id] = _Running(request, sim, vocabulary, sequences)
        self._scheduler.submit(sim)

    def cancel(self, request_id: int) -> None:
        if self._running.pop(request_id, None) is not None:
            self._scheduler.remove(request_id)

    def has_work(self) -> bool:
        return self._scheduler.has_work

    def step(self) -> list[SequenceUpdate]:
        started_s = self._clock.now_s()
        step = self._scheduler.step()
        self._iteration += 1
        self._context_tokens = step.work.prompt_tokens
        # If the planned end has already passed, the step ends now, and the next step is timed from
        # now. If the next step were timed from the planned end, it would be shorter than simulated.
        from_s = started_s if self._next_start_s is None else self._next_start_s
        end_s = max(from_s + step.duration_s, started_s)
        updates = self._collect_updates(step, _ns(from_s), _ns(end_s))
        self._next_start_s = end_s if self._scheduler.has_work else None
        self._clock.wait_until(end_s)
        return updates

    def stats(self) -> EngineStats:
        scheduler, limits = self._scheduler, self._simulation.limits
        return EngineStats(
            active_requests=scheduler.num_requests,
            scheduled_requests=scheduler.num_running,
            context_requests=scheduler.num_in_context,
            waiting_requests=scheduler.num_waiting,
            kv_blocks_max=limits.num_blocks,
            kv_blocks_used=scheduler.count_used_blocks(),
            tokens_per_block=limits.tokens_per_block,
            iteration=self._iteration,
            context_tokens=self._context_tokens if scheduler.has_work else 0,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            kv_blocks_reused=self._num_blocks_reused,
            kv_blocks_missed=self._num_blocks_missed,
        )

    def close(self) -> None:
        """Do nothing, because the engine has no resources that outlive this process."""

    def _collect_updates(self, step: Step, started_ns: int, end_ns: int) -> list[SequenceUpdate]:
        for sim in step.started:
            self._running[sim.id].first_scheduled_ns = started_ns
            needed = -(-len(sim.input_ids) // self._simulation.limits.tokens_per_block)
            self._num_blocks_reused += sim.num_reused_blocks
            self._num_blocks_missed += needed - sim.num_reused_blocks
        updates: list[SequenceUpdate] = []
        for sim in step.tokens:
            running = self._running[sim.id]
            prompt = None if running.first_token_ns else self._describe_prompt(running)
            running.first_token_ns = running.first_token_ns or end_ns
            running.last_token_ns = end_ns
            perf = self._perf(running) if running.request.return_perf_metrics else None
            for index, sequence in enumerate(running.sequences):
                if not sequence.is_done:
                    updates.append(self._advance(running, index, sequence, perf, prompt))
                    prompt = None
            if all(each.is_done for each in running.sequences):
                del self._running[sim.id]
                if not sim.is_done:
                    self._scheduler.remove(sim.id)
        return updates

    def _advance(
        self,
        running: _Running,
        index: int,
        sequence: _Sequence,
        perf: PerfMetrics | None,
        prompt: PromptFacts | None,
    ) -> SequenceUpdate:
        """Generate the next token of a sequence and return its update."""
        request, previous = running.request, sequence.last_token
        token, finish_reason = _next_token(running, sequence)
        sequence.last_token = token
        log_probs: tuple[float, ...] = ()
        if request.return_log_probs:
            log_probs = (make_log_prob(previous, token),)
            sequence.cum_log_prob += log_probs[0]
        top = request.num_top_log_probs
        return SequenceUpdate(
            request.id,
            index,
            (token,),
            finish_reason,
            log_probs,
            sequence.cum_log_prob if request.return_log_probs else None,
            perf=perf,
            top_log_probs=(make_alternatives(previous, token, top, self.limits.vocab_size),)
            if top
            else (),
            prompt=prompt,
        )

    def _describe_prompt(self, running: _Running) -> PromptFacts:
        request = running.request
        num_cached = running.sim.num_reused_blocks * self._simulation.limits.tokens_per_block
        if not request.return_prompt_log_probs:
            return PromptFacts(num_cached)
        scores = score_tokens(request.input_ids, request.num_top_log_probs, self.limits.vocab_size)
        return PromptFacts(num_cached, *scores)

    def _perf(self, running: _Running) -> PerfMetrics:
        sim = running.sim
        total = count_blocks(
            self._simulation.limits, len(sim.input_ids), sim.num_generated, sim.num_sequences
        )
        return PerfMetrics(
            kv_cache_alloc_total_blocks=total,
            kv_cache_alloc_new_blocks=total - sim.num_reused_blocks,
            kv_cache_reused_blocks=sim.num_reused_blocks,
            first_scheduled_time_ns=running.first_scheduled_ns,
            first_token_time_ns=running.first_token_ns,
            last_token_time_ns=running.last_token_ns,
        )


def _check_servable(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` if the request uses beam search, guided decoding or a LoRA adapter.

    Triton's models reject the tensors of other unsupported features before submitting a request.
    """
    requested = {
        "beam_width": request.beam_width > 1,
        "guided_decoding_guide_type": request.guide_type is not None,
        "lora_task_id": request.lora_task_id is not None,
        "lora_name": request.lora_name is not None,
    }
    for tensor, is_set in requested.items():
        if is_set:
            raise InvalidRequest(explain_rejection(tensor, _KIND))


def _choose_vocabulary(request: GenerationRequest, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens from which response tokens are drawn.

    If any tokens have a bias of 100 or more, return only these tokens. Otherwise, return the
    prompt's tokens, except the end token, single-token bad words, and tokens with a bias of -100 or
    less. If all prompt tokens are excluded, return only the lowest token that is not excluded, or
    token 0 if the whole vocabulary is excluded.
    """
    banned = {word[0] for word in request.bad_words if len(word) == 1} | {request.end_id}
    banned |= {token for token, bias in request.logit_bias if bias <= -_DECISIVE_BIAS}
    forced = tuple(token for token, bias in request.logit_bias if bias >= _DECISIVE_BIAS)
    vocabulary = forced or tuple(token for token in request.input_ids if token not in banned)
    return (
        vocabulary or tuple(token for token in range(vocab_size) if token not in banned)[:1] or (0,)
    )


def _next_token(running: _Running, sequence: _Sequence) -> tuple[int, FinishReason | None]:
    """Draw the next token of a sequence.

    Return the token and the finish reason, which is None if the sequence continues.
    """
    request = running.request
    token = _draw(running, sequence)
    finish_reason: FinishReason | None = "length" if running.sim.is_done else None
    if request.stop_words or request.bad_words:
        sequence.tokens.append(token)
        if ends_with_word(sequence.tokens, len(sequence.tokens), request.stop_words):
            finish_reason = "stop"
    sequence.is_done = finish_reason is not None
    return token, finish_reason


def _draw(running: _Running, sequence: _Sequence) -> int:
    """Draw a token from the request's vocabulary that does not complete a bad word.

    If every token completes a bad word, draw any token from the vocabulary.
    """
    vocabulary, bad_words = running.vocabulary, running.request.bad_words
    start = sequence.rng.randrange(len(vocabulary))
    if not bad_words:
        return vocabulary[start]
    candidates = (vocabulary[(start + each) % len(vocabulary)] for each in range(len(vocabulary)))
    end = len(sequence.tokens) + 1
    allowed = (
        each for each in candidates if not ends_with_word([*sequence.tokens, each], end, bad_words)
    )
    return next(allowed, vocabulary[start])


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
