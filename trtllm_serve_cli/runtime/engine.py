"""The interface that all engines implement, with its requests, updates and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Protocol

from .guide import GUIDE_TYPES, find_guide_problem

FinishReason = Literal["stop", "length"]


# The maximum number of tokens in a word list. Compiling this many tokens into an automaton takes
# about 1 s.
_MAX_WORD_TOKENS = 4096


class InvalidRequest(Exception):
    """Raised if the engine cannot run a request. The client receives the message."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt and its sampling parameters, which are named after NVIDIA's request tensors.

    If `end_id` is not set, a sequence ends only at a stop word or after `max_new_tokens`. If
    neither `top_k` nor `top_p` is set, decoding is greedy at any temperature, as in TensorRT-LLM.
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
    # `lora_task_id` or `lora_name` selects a LoRA adapter. `lora_file` is the path of a file with
    # the adapter weights that the client has sent.
    lora_task_id: int | None = None
    lora_name: str | None = None
    lora_file: str | None = None

    @property
    def is_greedy(self) -> bool:
        """Return whether decoding always selects the most likely token."""
        top_k, top_p = self.top_k or 0, self.top_p or 0.0
        return top_k == 1 or (top_k == 0 and top_p == 0.0) or self.temperature == 0.0

    def to_message(self) -> dict[str, Any]:
        """Return the request as a dictionary for a `submit` frame.

        This method is ten times as fast as `dataclasses.asdict`, which copies every token.
        """
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> GenerationRequest:
        """Create a request from a dictionary that `to_message` returned."""
        words = {
            key: tuple(tuple(word) for word in message.get(key, ()))
            for key in ("stop_words", "bad_words")
        }
        return cls(**{**message, **words, "input_ids": tuple(message["input_ids"])})


# The names of the output tensors that a client requests with `return_perf_metrics`.
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
    """The performance metrics of a request so far.

    The fields are named after the output tensors in `PERF_OUTPUTS`. Times are in nanoseconds of the
    monotonic clock. A time is 0 until it is known. Block counts include the KV cache blocks of all
    sequences in the request.
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
    """New tokens for one sequence of a request, the end of the sequence, or both.

    `log_probs` contains one value per token in `token_ids`. `cum_log_prob` is the sum for the
    sequence so far, and `perf` contains the metrics of the whole request. An update with `error` is
    the last update for its request. If `rejected` is set, the engine never ran the request.
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
        """Return the update as an entry for a `step` frame.

        The entry is a list, because a dictionary would repeat its keys for every token.
        """
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
    """Merge the updates for each sequence into one update, but do not merge errors."""
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
    """An engine's limits, which `check_request` enforces for each request."""

    max_seq_len: int
    max_beam_width: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The current state of an engine.

    `paused_requests` counts the requests that are currently preempted. These requests have
    generated tokens and then lost their KV cache blocks to other requests. `kv_blocks_reused`
    counts prompt blocks that were in the KV cache, and `kv_blocks_missed` counts prompt blocks that
    were not. These two counters and `preemptions` start at 0 when the engine is loaded.
    `memory_bytes` is host memory.
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


# The fields of `EngineStats` that are counters. Their values never decrease.
COUNTS = ("iteration", "preemptions", "kv_blocks_reused", "kv_blocks_missed")


class Engine(Protocol):
    """An engine that runs batches of requests, one step at a time, in the calling thread."""

    limits: EngineLimits

    def submit(self, request: GenerationRequest) -> None:
        """Queue `request`. Raise `InvalidRequest` if this engine cannot run it."""

    def cancel(self, request_id: int) -> None:
        """Cancel a request and free its slot immediately. Do nothing if the request has ended."""

    def has_work(self) -> bool:
        """Return whether the engine has requests or updates that `step` must process."""

    def step(self) -> list[SequenceUpdate]:
        """Run one batch step and return its updates."""

    def stats(self) -> EngineStats:
        """Return the current state. This method must be fast, because it runs between steps."""

    def close(self) -> None:
        """Release all resources that would outlive this process. This must be the last call."""


def last_line(error: Exception) -> str:
    """Return the last line of an error's text, which is the message without source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def check_request(request: GenerationRequest, limits: EngineLimits) -> None:
    """Raise `InvalidRequest` with the tensor's name if a value is invalid or exceeds `limits`."""
    if not request.input_ids:
        raise InvalidRequest("input_ids is empty; send a prompt with at least one token")
    if (lowest := min(request.input_ids)) < 0:
        raise InvalidRequest(
            f"input_ids contains {lowest}, which is not a token id; send ids of 0 or greater"
        )
    _check_words("stop_words_list", request.stop_words, limits)
    _check_words("bad_words_list", request.bad_words, limits)
    if request.max_new_tokens < 1:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}; request at least 1 token"
        )
    room = limits.max_seq_len - len(request.input_ids)
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {len(request.input_ids)} tokens, but the prompt and the response must "
            f"fit in this model's context of {limits.max_seq_len} tokens (max_seq_len); shorten "
            "the prompt"
        )
    if request.max_new_tokens > room:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}, but only {room} of "
            f"the {limits.max_seq_len} tokens in this model's context (max_seq_len) remain after "
            f"the prompt; request at most {room}"
        )
    _check_ranges(request, limits)
    if request.guide_type is not None:
        _check_guide(request.guide_type, request.guide)
    elif request.guide:
        raise InvalidRequest(
            "guided_decoding_guide is set, but guided_decoding_guide_type is missing; set the type "
            f"to one of {', '.join(GUIDE_TYPES)}"
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
            f"num_return_sequences is {request.num_return_sequences}, but a beam search returns at "
            f"most one sequence per beam; request at most {request.beam_width} (beam_width)"
        )


def _check_guide(guide_type: str, guide: str) -> None:
    if guide_type not in GUIDE_TYPES:
        raise InvalidRequest(
            f"guided_decoding_guide_type is {guide_type!r}, which is unknown; send one of "
            f"{', '.join(GUIDE_TYPES)}"
        )
    if problem := find_guide_problem(guide_type, guide):
        raise InvalidRequest(f"guided_decoding_guide {problem}")


def fit_to_vocabulary(request: GenerationRequest, limits: EngineLimits) -> GenerationRequest:
    """Return `request` with `input_ids` and `end_id` limited to the vocabulary.

    NVIDIA's backend accepts ids outside the vocabulary. Input ids are taken modulo the vocabulary
    size, because NVIDIA's benchmark sends random ids from the whole INT32 range. An `end_id`
    outside the vocabulary is removed, because some of NVIDIA's clients send 50256 to every model.
    With such an `end_id` and `min_tokens`, OpenVINO GenAI would write outside its logits.
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
            f"{tensor} contains {low if low < 0 else high}, which is not a token id of this model; "
            f"send ids from 0 to {limits.vocab_size - 1}"
        )


def _check_words(tensor: str, words: Sequence[tuple[int, ...]], limits: EngineLimits) -> None:
    token_ids = tuple(chain(*words))
    if len(token_ids) > _MAX_WORD_TOKENS:
        raise InvalidRequest(
            f"{tensor} has {len(token_ids)} tokens; send at most {_MAX_WORD_TOKENS} tokens"
        )
    _check_tokens(tensor, token_ids, limits)


def _check_range(tensor: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        shown = str(value) if isinstance(value, int) else f"{value:g}"
        raise InvalidRequest(f"{tensor} is {shown}; it must be from {low:g} to {high:g}")
