"""Define the engine interface and its requests, updates and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


# A token id and its log probability.
TokenLogProb = tuple[int, float]
# The minimum number of values in a `SequenceUpdate` entry of a `step` frame.
_NUM_BASIC_ENTRIES = 9


class InvalidRequest(Exception):
    """Raised if a request is invalid or cannot be run. The client receives the message."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt and its sampling parameters.

    Most fields are named after NVIDIA's request tensors. If `end_id` is not set, a sequence ends
    only at a stop word or after `max_new_tokens` tokens. If neither `top_k` nor `top_p` is set,
    decoding is greedy at any temperature, as in TensorRT-LLM. Embedding engines accept only
    requests whose `max_new_tokens` is 0.
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
    # `lora_task_id` or `lora_name` selects a LoRA adapter. `lora_file` is the path of the adapter
    # weights from the client, or of an adapter folder on the server.
    lora_task_id: int | None = None
    lora_name: str | None = None
    lora_file: str | None = None
    # Earlier worker versions do not support the following fields (see `OPTIONAL_FIELDS`).
    # `logit_bias` contains (token id, bias) pairs. `num_top_log_probs` is the number of most likely
    # tokens to return at each position, with their log probabilities. `trace_parent` is the W3C
    # `traceparent` for the engine's spans, or empty if the request is not traced.
    min_p: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_top_log_probs: int = 0
    return_prompt_log_probs: bool = False
    trace_parent: str = ""

    @property
    def is_greedy(self) -> bool:
        """True if the sampling parameters always select the most likely token."""
        top_k, top_p = self.top_k or 0, self.top_p or 0.0
        return top_k == 1 or (top_k == 0 and top_p == 0.0) or self.temperature == 0.0

    def to_message(self) -> dict[str, Any]:
        """Return the request as a dictionary for a `submit` frame.

        This method is ten times as fast as `dataclasses.asdict`, which copies every token. Unset
        optional fields are omitted, because earlier worker versions reject them.
        """
        message = {name: getattr(self, name) for name in _BASIC_FIELDS}
        for name in OPTIONAL_FIELDS:
            if value := getattr(self, name):
                message[name] = value
        return message

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> GenerationRequest:
        """Create a request from a dictionary that `to_message` returned."""
        words = {
            key: tuple(tuple(word) for word in message.get(key, ()))
            for key in ("stop_words", "bad_words")
        }
        if bias := message.get("logit_bias"):
            words["logit_bias"] = tuple((token, value) for token, value in bias)
        return cls(**{**message, **words, "input_ids": tuple(message["input_ids"])})


# The request fields that earlier worker versions do not support. A worker lists the optional
# fields that it supports in its `ready` frame.
OPTIONAL_FIELDS = (
    "min_p", "logit_bias", "num_top_log_probs", "return_prompt_log_probs", "trace_parent",
)  # fmt: skip
_BASIC_FIELDS = tuple(each for each in GenerationRequest.__slots__ if each not in OPTIONAL_FIELDS)


# The names of the output tensors that `return_perf_metrics` requests.
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

    The fields are named after the output tensors in `PERF_OUTPUTS`. Times are in nanoseconds on the
    monotonic clock. A time is 0 until it is known. vLLM and TensorRT-LLM run each sequence of
    `num_return_sequences` as a separate request, so their metrics describe a single sequence.
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
class PromptFacts:
    """Information from the engine about a prompt.

    - `num_cached_tokens`: the number of prompt tokens read from the KV cache, or None if the engine
      does not report this number.
    - `log_probs`: one value per prompt token except the first, if the request sets
      `return_prompt_log_probs`.
    - `top_log_probs`: the most likely tokens at the same positions, if the request also sets
      `num_top_log_probs`.
    """

    num_cached_tokens: int | None = None
    log_probs: tuple[float, ...] = ()
    top_log_probs: tuple[tuple[TokenLogProb, ...], ...] = ()

    def to_wire(self) -> list[Any]:
        return [self.num_cached_tokens, self.log_probs, self.top_log_probs]

    @classmethod
    def from_wire(cls, entry: list[Any]) -> PromptFacts:
        num_cached_tokens, log_probs, top = entry
        return cls(num_cached_tokens, tuple(log_probs), _as_alternatives(top))


# Do not freeze this dataclass, because an instance is created for each token and the `__init__`
# method of a frozen dataclass takes four times as long.
@dataclass(slots=True)
class SequenceUpdate:
    """New tokens for one sequence of a request, the end of the sequence, or an error.

    An update with new tokens may also end the sequence.

    - `log_probs`: one value per token in `token_ids`, if the request sets `return_log_probs`.
    - `cum_log_prob`: the sum of the sequence's log probabilities so far.
    - `error`: the error message. An update with an error is the last update for its request.
    - `perf`: the performance metrics of the request so far.
    - `rejected`: true if the update contains an error that the request, not the engine, caused.
    - `top_log_probs`: the most likely tokens at the position of each token in `token_ids`, if the
      request sets `num_top_log_probs`.
    - `prompt`: information about the prompt. At most one update, for the first sequence,
      contains it.
    - `embedding`: the prompt's embedding as text (see `encode_vector` in embedding.py).
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
    top_log_probs: tuple[tuple[TokenLogProb, ...], ...] = ()
    prompt: PromptFacts | None = None
    embedding: str = ""

    def to_wire(self) -> list[Any]:
        """Return the update as an entry for a `step` frame.

        The entry is a list, because a dictionary would repeat its keys for every token. Most
        entries end with `rejected`, because the fields after it are omitted if they are unset.
        """
        entry = [
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
        if self.top_log_probs or self.prompt is not None or self.embedding:
            entry += [self.top_log_probs, self.prompt and self.prompt.to_wire()]
        if self.embedding:
            entry.append(self.embedding)
        return entry

    @classmethod
    def from_wire(cls, entry: list[Any]) -> SequenceUpdate:
        """Create an update from a `step` frame entry.

        The fields after `rejected` may be missing, because they are unset or because the engine
        worker is of an earlier version.
        """
        top: tuple[tuple[TokenLogProb, ...], ...] = ()
        prompt = None
        embedding = ""
        if len(entry) > _NUM_BASIC_ENTRIES:
            top_entries, prompt_entry, *rest = entry[_NUM_BASIC_ENTRIES:]
            entry, embedding = entry[:_NUM_BASIC_ENTRIES], (*rest, "")[0]
            top = _as_alternatives(top_entries)
            prompt = None if prompt_entry is None else PromptFacts.from_wire(prompt_entry)
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
            top,
            prompt,
            embedding,
        )


def _as_alternatives(entries: Iterable[Any]) -> tuple[tuple[TokenLogProb, ...], ...]:
    return tuple(tuple((token, value) for token, value in entry) for entry in entries)


def merge_updates(updates: Iterable[SequenceUpdate]) -> list[SequenceUpdate]:
    """Merge the updates for each sequence into one update, but keep errors as separate updates."""
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
        top_log_probs=earlier.top_log_probs + later.top_log_probs,
        prompt=earlier.prompt or later.prompt,
        embedding=earlier.embedding or later.embedding,
    )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The engine limits that `check_request` (request_check.py) enforces for each request.

    If `computes_embeddings` is set, the engine computes embeddings instead of generating tokens.
    """

    max_seq_len: int
    max_beam_width: int
    vocab_size: int
    computes_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The current state of an engine.

    - `paused_requests`: the number of preempted requests. A preempted request has generated tokens
      but has lost its KV cache blocks to other requests.
    - `kv_blocks_reused` and `kv_blocks_missed`: the numbers of prompt blocks found and not found in
      the KV cache since the engine was loaded.
    - `preemptions`: the number of preemptions since the engine was loaded.
    - `memory_bytes`: the host memory in use. The `openvino` and `sim` engine kinds report the peak.
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


# The fields in `EngineStats` that never decrease while the engine is loaded.
COUNTS = ("iteration", "preemptions", "kv_blocks_reused", "kv_blocks_missed")


class Engine(Protocol):
    """An engine that runs requests in batches, in the calling thread or in other processes."""

    limits: EngineLimits

    def submit(self, request: GenerationRequest) -> None:
        """Queue `request`. Raise `InvalidRequest` if this engine cannot run it."""

    def cancel(self, request_id: int) -> None:
        """Cancel a request to free its slot. Do nothing if the request has ended."""

    def has_work(self) -> bool:
        """Return whether the engine has requests or updates that `step` must process."""

    def step(self) -> list[SequenceUpdate]:
        """Run the next step, or wait briefly for one, and return the new updates."""

    def stats(self) -> EngineStats:
        """Return the current state. This method must be fast, because it runs between steps."""

    def close(self) -> None:
        """Release resources that would outlive this process. This must be the last call."""


def last_line(error: Exception) -> str:
    """Return the last non-empty line of an error message.

    If the message is empty, return the exception class name.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
