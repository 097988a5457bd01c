"""What every engine takes and gives: requests, updates, statistics, and the engine itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Protocol

from .guide import GUIDE_TYPES, find_guide_problem

FinishReason = Literal["stop", "length"]


# An automaton of so many tokens of plain words takes some 1 s to make.
_MAX_WORD_TOKENS = 4096


class InvalidRequest(Exception):
    """A request that this engine cannot run; the message is for whoever sent it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to go on from it. Names follow upstream's tensors.

    `end_id` None means that only `max_new_tokens` and stop words end the sequence. Without `top_k`
    and `top_p` decoding is greedy, whatever the temperature, as TensorRT-LLM has it.
    """

    id: int
    input_ids: tuple[int, ...]
    max_new_tokens: int
    end_id: int | None = None
    beam_width: int = 1
    num_return_sequences: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    len_penalty: float | None = None
    early_stopping: bool | None = None
    beam_search_diversity_rate: float | None = None
    min_tokens: int | None = None
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    return_log_probs: bool = False
    return_perf_metrics: bool = False
    guide_type: str | None = None
    guide: str = ""
    # Of an adapter: its task id or its name, and the file in which it was sent along.
    lora_task_id: int | None = None
    lora_name: str | None = None
    lora_file: str | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        top_k, top_p = self.top_k or 0, self.top_p or 0.0
        return top_k == 1 or (top_k == 0 and top_p == 0.0) or self.temperature == 0.0

    def to_message(self) -> dict[str, Any]:
        """For a `submit` frame. (`dataclasses.asdict` copies every token: ten times the time.)"""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> GenerationRequest:
        """The request that `to_message` and JSON made into `message`."""
        words = {
            key: tuple(tuple(word) for word in message.get(key, ()))
            for key in ("stop_words", "bad_words")
        }
        return cls(**{**message, **words, "input_ids": tuple(message["input_ids"])})


# Upstream's outputs that `return_perf_metrics` asks for.
PERF_OUTPUTS = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
)


@dataclass(frozen=True, slots=True)
class PerfMetrics:
    """What one request has cost so far. Names are upstream's outputs.

    Times are nanoseconds of the monotonic clock, 0 while they are to come. Blocks are of the KV
    cache, of all sequences of the request.
    """

    kv_cache_alloc_total_blocks: int = 0
    kv_cache_alloc_new_blocks: int = 0
    kv_cache_reused_blocks: int = 0
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """New tokens of one sequence of one request, or its end, or both.

    `log_probs` goes with `token_ids`; `cum_log_prob` is of the whole sequence so far, `perf` of the
    whole request. A request that failed has `error` and nothing else follows for it; it was
    `refused` if it never ran.
    """

    request_id: int
    sequence_index: int = 0
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    error: str | None = None
    perf: PerfMetrics | None = None
    rejected: bool = False

    def to_wire(self) -> list[Any]:
        """As one entry of a `step` frame: positional, since there is one per token."""
        return [
            self.request_id,
            self.sequence_index,
            self.token_ids,
            self.finish_reason,
            self.log_probs,
            self.cum_log_prob,
            self.error,
            [getattr(self.perf, name) for name in PerfMetrics.__slots__] if self.perf else None,
            self.rejected,
        ]

    @classmethod
    def from_wire(cls, entry: list[Any]) -> SequenceUpdate:
        request_id, sequence, tokens, finish, log_probs, cum, error, perf, rejected = entry
        return cls(
            request_id,
            sequence,
            tuple(tokens),
            finish,
            tuple(log_probs),
            cum,
            error,
            PerfMetrics(*perf) if perf else None,
            rejected,
        )


def merge_updates(updates: Iterable[SequenceUpdate]) -> list[SequenceUpdate]:
    """One update per sequence that says all that several of `updates` say; errors stay apart."""
    merged: dict[tuple[int, int, bool], SequenceUpdate] = {}
    for update in updates:
        key = (update.request_id, update.sequence_index, update.error is not None)
        known = merged.get(key)
        merged[key] = update if known is None else _merge_pair(known, update)
    return list(merged.values())


def _merge_pair(earlier: SequenceUpdate, later: SequenceUpdate) -> SequenceUpdate:
    return SequenceUpdate(
        earlier.request_id,
        earlier.sequence_index,
        earlier.token_ids + later.token_ids,
        later.finish_reason,
        earlier.log_probs + later.log_probs,
        earlier.cum_log_prob if later.cum_log_prob is None else later.cum_log_prob,
        later.error,
        later.perf or earlier.perf,
    )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine can take; requests beyond it are refused before they reach it."""

    max_seq_len: int
    max_beam_width: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How an engine is doing now. Sizes are bytes, the KV cache counts blocks.

    Paused are requests that had tokens already and lost their place in the KV cache to others.
    Of the blocks of all prompts since the engine was loaded, `kv_blocks_reused` were in the KV
    cache and `kv_blocks_missed` were not; `preemptions` counts the pauses. `memory_bytes` is the
    machine's.
    """

    active_requests: int = 0
    scheduled_requests: int = 0
    context_requests: int = 0
    waiting_requests: int = 0
    kv_blocks_max: int = 0
    kv_blocks_used: int = 0
    tokens_per_block: int = 0
    iteration: int = 0
    context_tokens: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    pinned_memory_bytes: int = 0
    micro_batch_id: int = 0
    paused_requests: int = 0
    preemptions: int = 0
    kv_blocks_reused: int = 0
    kv_blocks_missed: int = 0


# Those of its figures that only grow.
COUNTS = ("iteration", "preemptions", "kv_blocks_reused", "kv_blocks_missed")


class Engine(Protocol):
    """A batching engine, driven one step at a time from one thread."""

    limits: EngineLimits

    def submit(self, request: GenerationRequest) -> None:
        """Queue `request`. Raises `InvalidRequest` when this engine cannot run it."""

    def cancel(self, request_id: int) -> None:
        """Free the request's slot at once; an id that is not running is ignored."""

    def has_work(self) -> bool:
        """Whether `step` would do anything."""

    def step(self) -> list[SequenceUpdate]:
        """Run one batch step and tell what it brought."""

    def stats(self) -> EngineStats:
        """How it is doing now; cheap enough to ask after every step."""

    def close(self) -> None:
        """End what would outlive this process; nothing is asked of the engine afterwards."""


def last_line(error: Exception) -> str:
    """What an engine's package has to say, without the places in its source that come before."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def check_request(request: GenerationRequest, limits: EngineLimits) -> None:
    """Raise `InvalidRequest`, naming the tensor, when `request` is beyond any engine's sense."""
    if not request.input_ids:
        raise InvalidRequest("input_ids is empty: the prompt has no tokens; send at least one")
    if (lowest := min(request.input_ids)) < 0:
        raise InvalidRequest(f"input_ids holds {lowest}, which is no token: ids go from 0")
    _check_words("stop_words_list", request.stop_words, limits)
    _check_words("bad_words_list", request.bad_words, limits)
    if request.max_new_tokens < 1:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}; ask for at least 1"
        )
    room = limits.max_seq_len - len(request.input_ids)
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {len(request.input_ids)} tokens, but this model's context "
            f"(max_seq_len) holds {limits.max_seq_len} with the answer; shorten the prompt"
        )
    if request.max_new_tokens > room:
        raise InvalidRequest(
            f"{len(request.input_ids)} prompt tokens and {request.max_new_tokens} to generate "
            f"(request_output_len, max_tokens) exceed this model's context (max_seq_len) of "
            f"{limits.max_seq_len}; ask for at most {room}"
        )
    _check_ranges(request, limits)
    if request.guide_type is not None:
        _check_guide(request.guide_type, request.guide)
    elif request.guide:
        raise InvalidRequest(
            "guided_decoding_guide_type is missing; send what kind of guide guided_decoding_guide "
            f"is: one of {', '.join(GUIDE_TYPES)}"
        )


def _check_ranges(request: GenerationRequest, limits: EngineLimits) -> None:
    _check_range("beam_width", request.beam_width, 1, limits.max_beam_width)
    _check_range("num_return_sequences", request.num_return_sequences, 1, 64)
    _check_range("temperature", request.temperature, 0.0, 1e4)
    _check_range("runtime_top_k", request.top_k, 0, limits.vocab_size)
    _check_range("runtime_top_p", request.top_p, 0.0, 1.0)
    _check_range("seed", request.seed, 0, 2**64 - 1)
    _check_range("repetition_penalty", request.repetition_penalty, 1e-4, 1e4)
    _check_range("presence_penalty", request.presence_penalty, -1e4, 1e4)
    _check_range("frequency_penalty", request.frequency_penalty, -1e4, 1e4)
    _check_range("len_penalty (length_penalty)", request.len_penalty, -1e4, 1e4)
    _check_range("beam_search_diversity_rate", request.beam_search_diversity_rate, 0.0, 1e4)
    _check_range("min_tokens", request.min_tokens, 0, request.max_new_tokens)
    if request.beam_width > 1 and request.num_return_sequences > request.beam_width:
        raise InvalidRequest(
            f"num_return_sequences is {request.num_return_sequences}, more than the beam_width of "
            f"{request.beam_width}; a beam search returns at most its beams"
        )


def _check_guide(guide_type: str, guide: str) -> None:
    if guide_type not in GUIDE_TYPES:
        raise InvalidRequest(
            f"guided_decoding_guide_type is {guide_type!r}; it must be one of "
            f"{', '.join(GUIDE_TYPES)}"
        )
    if problem := find_guide_problem(guide_type, guide):
        raise InvalidRequest(f"guided_decoding_guide {problem}")


def fit_to_vocabulary(request: GenerationRequest, limits: EngineLimits) -> GenerationRequest:
    """`request` with ids of the vocabulary only, where upstream's backend takes any.

    An input id beyond it stands for its remainder: upstream's benchmark draws them from all that
    INT32 holds. An `end_id` that is no token ends nothing: some of upstream's clients send 50256 to
    every model, and OpenVINO GenAI would write beyond its logits, with `min_tokens` set.
    """
    if max(request.input_ids) >= limits.vocab_size:
        wrapped = tuple(token % limits.vocab_size for token in request.input_ids)
        request = replace(request, input_ids=wrapped)
    if request.end_id is not None and not 0 <= request.end_id < limits.vocab_size:
        request = replace(request, end_id=None)
    return request


def _check_tokens(tensor: str, token_ids: Sequence[int], limits: EngineLimits) -> None:
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if low < 0 or high >= limits.vocab_size:
        raise InvalidRequest(
            f"{tensor} holds {low if low < 0 else high}, which is no token of this model: ids go "
            f"from 0 to {limits.vocab_size - 1}"
        )


def _check_words(tensor: str, words: Sequence[tuple[int, ...]], limits: EngineLimits) -> None:
    token_ids = tuple(chain(*words))
    if len(token_ids) > _MAX_WORD_TOKENS:
        raise InvalidRequest(
            f"{tensor} has {len(token_ids)} tokens; send at most {_MAX_WORD_TOKENS}"
        )
    _check_tokens(tensor, token_ids, limits)


def _check_range(tensor: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        shown = str(value) if isinstance(value, int) else f"{value:g}"
        raise InvalidRequest(f"{tensor} is {shown}; it must be from {low:g} to {high:g}")
