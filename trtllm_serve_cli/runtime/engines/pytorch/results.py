"""Convert results from TensorRT-LLM's LLM API to an engine's updates.

The API updates a result in place. A result has one output per sequence. Each output contains all
tokens of its sequence that have been generated so far. The attribute names are from
tensorrt_llm/executor/result.py in NVIDIA/TensorRT-LLM (1.0 to 1.3).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ...engine import GenerationRequest, PerfMetrics, SequenceUpdate
from ..sequence_end import find_end


class ResultReader:
    """A reader for the new tokens in the result of one request.

    The reader searches the tokens for the end of each sequence for two reasons: the API reports the
    end reliably only for the last sequence, and it does not accept stop words with several tokens
    as token ids.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._sequences = [_Sequence(request, each) for each in range(request.num_return_sequences)]

    @property
    def is_done(self) -> bool:
        return all(each.is_done for each in self._sequences)

    def read(self, result: Any) -> list[SequenceUpdate]:
        """Return the updates since the last call. Beams are returned when the request ends."""
        if self._request.beam_width > 1 and not result.finished:
            return []
        updates = []
        for sequence, output in zip(self._sequences, result.outputs, strict=True):
            if output.finish_reason in ("timeout", "cancelled"):
                why = f"the engine ended the request: {output.finish_reason}"
                return [SequenceUpdate(self._request.id, error=why)]
            if (update := sequence.read(output, is_last=result.finished)) is not None:
                updates.append(update)
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
        if not self._request.return_log_probs:
            return {}
        new = tuple(
            _log_prob(entry, token)
            for entry, token in zip(
                output.logprobs[start:end], output.token_ids[start:end], strict=True
            )
        )
        self._cum_log_prob += sum(new)
        return {"log_probs": new, "cum_log_prob": self._cum_log_prob}


def _log_prob(entry: Any, token: int) -> float:
    """Return the token's log probability.

    `entry` is either the log probability or a mapping from likely tokens to log probabilities.
    """
    if not isinstance(entry, dict):
        return float(entry)
    return float(entry[token].logprob)


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
    """Convert a time on C++'s steady clock to nanoseconds.

    C++'s steady clock is the same clock as Python's monotonic clock.
    """
    return since_boot // timedelta(microseconds=1) * 1000
