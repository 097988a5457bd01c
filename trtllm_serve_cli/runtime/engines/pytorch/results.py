"""Convert results from TensorRT-LLM's LLM API to `SequenceUpdate` objects.

The API updates a result in place. A result has one output per sequence, and each output contains
all tokens generated so far. The attribute names are from tensorrt_llm/executor/result.py in
NVIDIA/TensorRT-LLM (1.0 to 1.3).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from ...engine import (
    GenerationRequest,
    PerfMetrics,
    PromptFacts,
    SequenceUpdate,
    TokenLogProb,
)
from ..log_probs import clamp_log_prob
from ..sequence_end import find_end


class ResultReader:
    """A reader for the new tokens in a request's result.

    The reader itself detects the end of each sequence, because the API reliably reports the end
    only for the last sequence. It also searches for multi-token stop words, because the API does
    not accept such words as token ids.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._sequences = [_Sequence(request, each) for each in range(request.num_return_sequences)]
        self._has_prompt = False

    @property
    def is_done(self) -> bool:
        return all(each.is_done for each in self._sequences)

    def read(self, result: Any) -> list[SequenceUpdate]:
        """Return the updates since the last call. Beams are returned when the request ends.

        Raise `ValueError` if the result lacks log probabilities that the request requires.
        """
        if self._request.beam_width > 1 and not result.finished:
            return []
        updates = []
        for sequence, output in zip(self._sequences, result.outputs, strict=True):
            if output.finish_reason in ("timeout", "cancelled"):
                why = f"the engine ended the request ({output.finish_reason}); retry the request"
                return [SequenceUpdate(self._request.id, error=why)]
            if (update := sequence.read(output, is_last=result.finished)) is not None:
                updates.append(update)
        if updates and not self._has_prompt and updates[0].sequence_index == 0:
            self._has_prompt = True
            updates[0] = replace(updates[0], prompt=_describe_prompt(result, self._request))
        return updates


class _Sequence:
    def __init__(self, request: GenerationRequest, index: int) -> None:
        self._request = request
        self._index = index
        self._num_read = 0
        self._cum_log_prob = 0.0
        self.is_done = False

    def read(self, output: Any, *, is_last: bool) -> SequenceUpdate | None:
        if self.is_done:
            return None
        start = self._num_read
        end, reason = find_end(output.token_ids, start, self._request)
        if reason is None and is_last:
            reason = "length" if output.finish_reason == "length" else "stop"
        if end == start and reason is None:
            return None
        self._num_read, self.is_done = end, reason is not None
        return SequenceUpdate(
            self._request.id,
            self._index,
            tuple(output.token_ids[start:end]),
            reason,
            **self._log_probs(output, start, end),
            perf=_perf(output.request_perf_metrics) if self._request.return_perf_metrics else None,
        )

    def _log_probs(self, output: Any, start: int, end: int) -> dict[str, Any]:
        request = self._request
        fields: dict[str, Any] = {}
        if request.return_log_probs:
            new = tuple(
                _log_prob(entry, token)
                for entry, token in zip(
                    output.logprobs[start:end], output.token_ids[start:end], strict=True
                )
            )
            self._cum_log_prob += sum(new)
            fields = {"log_probs": new, "cum_log_prob": self._cum_log_prob}
        if count := request.num_top_log_probs:
            entries = output.logprobs[start:end]
            fields["top_log_probs"] = tuple(_most_likely(entry, count) for entry in entries)
        return fields


def _log_prob(entry: Any, token: int) -> float:
    """Return the token's log probability.

    `entry` is either the log probability or a mapping from likely tokens to objects that contain
    their log probabilities. Raise `ValueError` if the mapping does not contain the token.
    """
    if not isinstance(entry, dict):
        return clamp_log_prob(entry)
    if token not in entry:
        raise ValueError(
            f"TensorRT-LLM did not return the log probability of token {token}; send the request "
            "without log probabilities"
        )
    return clamp_log_prob(entry[token].logprob)


def _most_likely(entry: Any, count: int) -> tuple[TokenLogProb, ...]:
    """Return the `count` most likely tokens of an entry, most likely first.

    `entry` maps tokens to objects that contain their log probabilities.
    """
    pairs = ((token, clamp_log_prob(each.logprob)) for token, each in entry.items())
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:count])


def _describe_prompt(result: Any, request: GenerationRequest) -> PromptFacts | None:
    """Return the number of cached prompt tokens and the prompt log probabilities in a result.

    Include the log probabilities only if the request sets `return_prompt_log_probs`. Return None if
    the request does not set this field and the result does not contain the number of cached tokens.
    Raise `ValueError` if the log probabilities do not match the prompt tokens.
    """
    num_cached = getattr(result, "cached_tokens", None)
    if not request.return_prompt_log_probs:
        return None if num_cached is None else PromptFacts(num_cached)
    tokens = request.input_ids[1:]
    # Depending on the version, the list may start with None for the first prompt token. It may also
    # end with an entry for the first response token.
    entries = list(result.outputs[0].prompt_logprobs or ())
    entries = entries[1:] if entries and entries[0] is None else entries
    if len(entries) not in (len(tokens), len(tokens) + 1):
        raise ValueError(
            f"TensorRT-LLM returned log probabilities for {len(entries)} of {len(tokens)} "
            "prompt tokens; serve the model with enable_kv_cache_reuse=false"
        )
    entries = entries[: len(tokens)]
    count = request.num_top_log_probs
    return PromptFacts(
        num_cached,
        tuple(_log_prob(entry, token) for entry, token in zip(entries, tokens, strict=True)),
        tuple(_most_likely(entry, count) for entry in entries) if count else (),
    )


def _perf(metrics: Any) -> PerfMetrics | None:
    if metrics is None:
        return None
    timing, cache = metrics.timing_metrics, metrics.kv_cache_metrics
    drafts = getattr(metrics, "speculative_decoding", None)
    return PerfMetrics(
        kv_cache_alloc_total_blocks=cache.num_total_allocated_blocks,
        kv_cache_alloc_new_blocks=cache.num_new_allocated_blocks,
        kv_cache_reused_blocks=cache.num_reused_blocks,
        first_scheduled_time_ns=_ns(timing.first_scheduled_time),
        first_token_time_ns=_ns(timing.first_token_time),
        last_token_time_ns=_ns(timing.last_token_time),
        total_accepted_draft_tokens=drafts.total_accepted_draft_tokens if drafts else 0,
        total_draft_tokens=drafts.total_draft_tokens if drafts else 0,
    )


def _ns(since_boot: timedelta) -> int:
    """Convert a C++ `steady_clock` time to nanoseconds on Python's monotonic clock.

    Both clocks are CLOCK_MONOTONIC on Linux.
    """
    return since_boot // timedelta(microseconds=1) * 1000
