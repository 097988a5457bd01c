"""The interface of all engines: requests, updates, statistics, and the engine itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Protocol

from .guide import GUIDE_TYPES, find_guide_problem

FinishReason = Literal["stop", "length"]


# The limit for all words of a list together: compiling this many tokens to an automaton takes about
# 1 s.
_MAX_WORD_TOKENS = 4096


class InvalidRequest(Exception):
    """Raised if the engine cannot run a request; the client receives the message."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and its sampling parameters, named like upstream's tensors.

    Without `end_id`, only `max_new_tokens` and stop words end the sequence. Without `top_k` and
    `top_p`, decoding is greedy at any temperature, as in TensorRT-LLM.
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
    # The LoRA adapter, by task id or name. `lora_file` contains weights that the client has sent.
    lora_task_id: int | None = None
    lora_name: str | None = None
    lora_file: str | None = None

    @property
    def is_greedy(self) -> bool:
        """True if decoding always selects the most likely token."""
        top_k, top_p = self.top_k or 0, self.top_p or 0.0
        return top_k == 1 or (top_k == 0 and top_p == 0.0) or self.temperature == 0.0

    def to_message(self) -> dict[str, Any]:
        """Return the content of a `submit` frame.

        This takes a tenth of the time of `dataclasses.asdict`, which copies every token.
        """
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> GenerationRequest:
        """Return the request that `to_message` converted to `message`."""
        words = {
            key: tuple(tuple(word) for word in message.get(key, ()))
            for key in ("stop_words", "bad_words")
        }
        return cls(**{**message, **words, "input_ids": tuple(message["input_ids"])})


# Upstream's outputs that `return_perf_metrics` requests.
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
    """Performance metrics of one request so far, named like upstream's outputs.

    Times are nanoseconds of the monotonic clock, and 0 until they are known. Block counts include
    the KV cache blocks of all sequences of the request.
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

    `log_probs` are for `token_ids`, `cum_log_prob` is for the whole sequence so far, and `perf` is
    for the whole request. An update with `error` is the last update of its request. If `rejected`
    is set, the request never ran.
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
        """Return an entry of a `step` frame: a list, because keys would be sent for every token."""
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
    """Merge the updates of each sequence into one; errors stay separate."""
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
    """The limits of an engine, which `check_request` enforces."""

    max_seq_len: int
    max_beam_width: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The current state of an engine.

    Paused requests were preempted: they had generated tokens and lost their KV cache blocks to
    other requests. `kv_blocks_reused` and `kv_blocks_missed` count the blocks of prompts that were
    and were not in the KV cache. Both, and `preemptions`, count from when the engine was loaded.
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


# Fields of `EngineStats` that only increase.
COUNTS = ("iteration", "preemptions", "kv_blocks_reused", "kv_blocks_missed")


class Engine(Protocol):
    """A batching engine, driven one step at a time from one thread."""

    limits: EngineLimits

    def submit(self, request: GenerationRequest) -> None:
        """Queue `request`. Raise `InvalidRequest` if this engine cannot run it."""

    def cancel(self, request_id: int) -> None:
        """Cancel a request and free its slot immediately; do nothing if it is not running."""

    def has_work(self) -> bool:
        """Return whether `step` has anything to do."""

    def step(self) -> list[SequenceUpdate]:
        """Run one batch step and return its updates."""

    def stats(self) -> EngineStats:
        """Return the current state. This must be fast, because it is called between steps."""

    def close(self) -> None:
        """Release everything that would outlive this process. No other call follows."""


def last_line(error: Exception) -> str:
    """Return the last line of an error: the message without the source locations before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def check_request(request: GenerationRequest, limits: EngineLimits) -> None:
    """Raise `InvalidRequest`, which names the tensor, if a value is invalid or exceeds `limits`."""
    if not request.input_ids:
        raise InvalidRequest("input_ids is empty: the prompt has no tokens; send at least one")
    if (lowest := min(request.input_ids)) < 0:
        raise InvalidRequest(
            f"input_ids contains {lowest}, which is not a token id; ids start at 0"
        )
    _check_words("stop_words_list", request.stop_words, limits)
    _check_words("bad_words_list", request.bad_words, limits)
    if request.max_new_tokens < 1:
        raise InvalidRequest(
            f"request_output_len (max_tokens) is {request.max_new_tokens}; request at least 1"
        )
    room = limits.max_seq_len - len(request.input_ids)
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {len(request.input_ids)} tokens, but this model's context "
            f"(max_seq_len) of {limits.max_seq_len} includes the response; shorten the prompt"
        )
    if request.max_new_tokens > room:
        raise InvalidRequest(
            f"{len(request.input_ids)} prompt tokens and {request.max_new_tokens} to generate "
            f"(request_output_len, max_tokens) exceed this model's context (max_seq_len) of "
            f"{limits.max_seq_len}; request at most {room}"
        )
    _check_ranges(request, limits)
    if request.guide_type is not None:
        _check_guide(request.guide_type, request.guide)
    elif request.guide:
        raise InvalidRequest(
            "guided_decoding_guide_type is missing; send the type of guided_decoding_guide: one of "
            f"{', '.join(GUIDE_TYPES)}"
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
            f"{request.beam_width}; a beam search returns at most one sequence per beam"
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
    """Return `request` without token ids outside the vocabulary, which upstream's backend accepts.

    Input ids are taken modulo the vocabulary size, because upstream's benchmark draws them from the
    whole range of INT32. An `end_id` outside the vocabulary is removed: some of upstream's clients
    send 50256 to every model, and with `min_tokens`, OpenVINO GenAI would write outside its logits.
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
            f"ids range from 0 to {limits.vocab_size - 1}"
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
