"""Simulate TensorRT-LLM's in-flight batching scheduler.

The simulated engine and the virtual clock (bench/simulate) share this scheduler. A step generates
one token for each sequence whose prompt is in the KV cache. The step uses the rest of its token
budget (`max_num_tokens`) to compute prompts. It computes only complete prompts, unless chunked
context is enabled. Requests are served in order of arrival.

A request starts when the KV cache has room and the number of running sequences, including its own,
does not exceed `max_batch_size` or `max_num_tokens`. `batch_scheduler_policy` determines how much
room a request needs:

- `guaranteed_no_evict`: room for its prompt and its longest possible response.
- `max_utilization`: room for its prompt, the tokens generated so far and the next token. When the
  blocks run out, the scheduler pauses the request that started last. Later, it recomputes the
  prompt and the generated tokens of the paused request.

With `enable_kv_cache_reuse`, blocks from earlier prompts are not computed again, but each request
still reserves memory for all its blocks. The sequences of one request share the prompt's full
blocks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..prefix_blocks import PrefixBlocks
from .timing import SchedulerLimits, Simulation, StepWork


@dataclass(slots=True, eq=False)
class SimRequest:
    """A request and its progress.

    - `num_generated`: the number of tokens generated in each sequence.
    - `num_computed`: the number of prompt tokens in the KV cache. After a pause, it includes the
      generated tokens, which are recomputed with the prompt.
    - `num_reused_blocks`: the number of blocks reused from earlier prompts.
    - `blocks`: the number of KV cache blocks reserved for the request.
    - `was_started`: true after the first start, even while the request is paused.
    """

    id: int
    input_ids: Sequence[int]
    max_new_tokens: int
    num_sequences: int = 1
    num_generated: int = 0
    num_computed: int = 0
    num_reused_blocks: int = 0
    blocks: int = 0
    was_started: bool = False

    @property
    def num_context_tokens(self) -> int:
        """The number of tokens that must be in the KV cache before the next token is generated."""
        return len(self.input_ids) + self.num_sequences * self.num_generated

    @property
    def is_done(self) -> bool:
        return self.num_generated >= self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step.

    - `tokens`: the requests that get a new token for each sequence. Requests whose prompts were
      completed in this step come first.
    - `started`: the requests that started for the first time in this step.
    """

    duration_s: float
    work: StepWork
    tokens: Sequence[SimRequest]
    started: Sequence[SimRequest] = field(default=())


class Scheduler:
    """A scheduler that decides what each simulated step computes.

    The scheduler is deterministic: it does not read a clock, and `seed` determines the jitter.
    """

    def __init__(self, simulation: Simulation, *, seed: int = 0) -> None:
        self._timing = simulation.timing
        self._limits = simulation.limits
        self._reserves = self._limits.batch_scheduler_policy == "guaranteed_no_evict"
        self._rng = random.Random(seed)
        capacity = self._limits.num_blocks if self._limits.enable_kv_cache_reuse else 0
        self._cached_blocks = PrefixBlocks(self._limits.tokens_per_block, capacity)
        self._waiting: deque[SimRequest] = deque()
        self._prompts: dict[int, SimRequest] = {}
        self._decoding: dict[int, SimRequest] = {}
        self._num_sequences = 0
        self._blocks = 0
        # The number of sequences in the decode phase and the number of tokens that these sequences
        # attend to.
        self._num_decoding = 0
        self._kv_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prompts or self._waiting)

    @property
    def num_waiting(self) -> int:
        """The number of requests that have not started or are paused."""
        return len(self._waiting)

    @property
    def num_in_context(self) -> int:
        """The number of requests whose prompts are being processed."""
        return len(self._prompts)

    @property
    def num_running(self) -> int:
        return len(self._prompts) + len(self._decoding)

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_waiting

    def count_used_blocks(self) -> int:
        """Return the number of KV cache blocks for the tokens of all running requests.

        The count includes the blocks of prompts that are still being processed. It excludes blocks
        that the scheduler has reserved for tokens that have not been generated.
        """
        running = (*self._prompts.values(), *self._decoding.values())
        return sum(self._blocks_for(each, each.num_generated) for each in running)

    def submit(self, request: SimRequest) -> None:
        """Queue a request. The caller must have checked it with `find_problem`."""
        self._waiting.append(request)

    def remove(self, request_id: int) -> None:
        """Remove a request in any state and free its KV cache blocks. Ignore unknown ids."""
        if request := self._prompts.pop(request_id, None):
            self._release(request)
        elif request := self._decoding.pop(request_id, None):
            self._stop_decoding(request)
            self._release(request)
        else:
            self._waiting = deque(each for each in self._waiting if each.id != request_id)

    def step(self) -> Step:
        """Simulate the next step and update the state of its requests."""
        if not self._reserves:
            self._make_room()
        started = self._admit()
        sequences, kv_tokens = self._num_decoding, self._kv_tokens
        decoded = self._decode()
        completed, prompt_tokens, prompt_pairs = self._compute_prompts(sequences)
        work = StepWork(prompt_tokens, prompt_pairs, sequences, kv_tokens)
        duration_s = self._timing.duration_s(work)
        if jitter := self._timing.jitter:
            duration_s *= self._rng.gammavariate(jitter**-2, jitter**2)
        return Step(duration_s, work, completed + decoded, started)

    def _admit(self) -> list[SimRequest]:
        """Start the queued requests in order of arrival until the next request does not fit.

        Return the requests that start for the first time, without those that resume after a pause.
        """
        slots = min(self._limits.max_batch_size, self._limits.max_num_tokens)
        started = []
        while self._waiting:
            request = self._waiting[0]
            answer = request.max_new_tokens if self._reserves else request.num_generated + 1
            blocks = self._blocks_for(request, answer)
            if (
                self._num_sequences + request.num_sequences > slots
                or self._blocks + blocks > self._limits.num_blocks
            ):
                break
            self._waiting.popleft()
            self._hold(request, blocks)
            self._prompts[request.id] = request
            if not request.was_started:
                request.was_started = True
                request.num_reused_blocks = self._cached_blocks.add(request.input_ids)
                request.num_computed = request.num_reused_blocks * self._limits.tokens_per_block
                started.append(request)
        return started

    def _make_room(self) -> None:
        """Reserve the KV cache blocks for the next tokens, starting with the oldest request.

        If too few blocks are free, pause the requests that started last.
        """
        for request in list(self._decoding.values()):
            if request.id not in self._decoding:
                continue
            more = self._blocks_for(request, request.num_generated + 1) - request.blocks
            if more <= 0:
                continue
            while self._blocks + more > self._limits.num_blocks:
                if self._pause_latest() is request:
                    break
            else:
                request.blocks += more
                self._blocks += more

    def _pause_latest(self) -> SimRequest:
        if self._prompts:
            _, request = self._prompts.popitem()
        else:
            _, request = self._decoding.popitem()
            self._stop_decoding(request)
        self._release(request)
        request.num_computed = 0
        self._waiting.appendleft(request)
        return request

    def _decode(self) -> list[SimRequest]:
        tokens = list(self._decoding.values())
        self._kv_tokens += self._num_decoding
        for request in tokens:
            request.num_generated += 1
            if request.num_generated >= request.max_new_tokens:
                del self._decoding[request.id]
                self._stop_decoding(request)
                self._release(request)
        return tokens

    def _compute_prompts(self, num_decoded: int) -> tuple[list[SimRequest], int, int]:
        """Process prompts within the step's token budget.

        Return the requests whose prompts are complete, the number of processed tokens, and the
        number of attention pairs (see `StepTiming`). A prompt may exceed the budget if the step
        processes nothing else. Otherwise, a paused request might never resume: its prompt and its
        generated tokens are recomputed together and may exceed the budget.
        """
        budget = self._limits.max_num_tokens - num_decoded
        is_chunked = self._limits.enable_chunked_context
        completed = []
        num_tokens = num_pairs = 0
        for request in list(self._prompts.values()):
            start = request.num_computed
            remaining = request.num_context_tokens - start
            chunk = min(remaining, budget) if is_chunked else remaining
            if chunk <= 0 or (chunk > budget and (num_tokens or num_decoded)):
                break
            budget -= chunk
            num_tokens += chunk
            num_pairs += chunk * start + chunk * (chunk - 1) // 2
            request.num_computed += chunk
            if chunk == remaining:
                del self._prompts[request.id]
                self._start_decoding(request)
                completed.append(request)
        return completed, num_tokens, num_pairs

    def _start_decoding(self, request: SimRequest) -> None:
        """Start decoding a request whose prompt is complete.

        The step that completed the prompt also generates the next token. If this token is the last
        one, release the request instead.
        """
        request.num_generated += 1
        if request.is_done:
            self._release(request)
            return
        self._decoding[request.id] = request
        self._num_decoding += request.num_sequences
        self._kv_tokens += self._count_attended(request)

    def _stop_decoding(self, request: SimRequest) -> None:
        self._num_decoding -= request.num_sequences
        self._kv_tokens -= self._count_attended(request)

    def _count_attended(self, request: SimRequest) -> int:
        return request.num_sequences * (len(request.input_ids) + request.num_generated)

    def _hold(self, request: SimRequest, blocks: int) -> None:
        request.blocks = blocks
        self._blocks += blocks
        self._num_sequences += request.num_sequences

    def _release(self, request: SimRequest) -> None:
        self._blocks -= request.blocks
        request.blocks = 0
        self._num_sequences -= request.num_sequences

    def _blocks_for(self, request: SimRequest, num_generated: int) -> int:
        return count_blocks(
            self._limits, len(request.input_ids), num_generated, request.num_sequences
        )


def count_blocks(
    limits: SchedulerLimits, num_input: int, num_generated: int, num_sequences: int = 1
) -> int:
    """Return how many KV cache blocks a request with `num_generated` tokens per sequence needs."""
    shared, remaining = divmod(num_input, limits.tokens_per_block)
    return shared + num_sequences * -(-(remaining + num_generated) // limits.tokens_per_block)


def find_problem(
    limits: SchedulerLimits, num_input: int, max_new_tokens: int, num_sequences: int = 1
) -> str | None:
    """Return an error message if a request with these lengths can never run, or None if it can."""
    size = limits.tokens_per_block
    if (needed := count_blocks(limits, num_input, max_new_tokens, num_sequences)) > (
        limits.num_blocks
    ):
        return (
            f"The request may need KV cache for {needed * size} tokens, but the limit is "
            f"{limits.num_blocks * size} tokens (max_tokens_in_paged_kv_cache). Request fewer "
            "tokens or sequences."
        )
    if num_sequences > (slots := min(limits.max_batch_size, limits.max_num_tokens)):
        return (
            f"The request has {num_sequences} sequences, but a step can process at most {slots} "
            "sequences. Request fewer sequences."
        )
    if num_input > limits.max_num_tokens and not limits.enable_chunked_context:
        return (
            f"The prompt has {num_input} tokens, but a step can process at most "
            f"{limits.max_num_tokens} tokens (max_num_tokens). Shorten the prompt, or serve the "
            "model with enable_chunked_context=true."
        )
    return None
