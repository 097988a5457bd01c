"""Convert outputs of vLLM's engine core to `SequenceUpdate` objects.

Each output contains the new tokens of one sequence. The attribute names are from
vllm/v1/engine/__init__.py and vllm/v1/outputs.py in vllm-project/vllm (0.26). Each row of log
probabilities starts with the actual token, followed by the most likely tokens.
"""

from __future__ import annotations

from typing import Any

from ...engine import (
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    PromptFacts,
    SequenceUpdate,
    TokenLogProb,
)
from ..log_probs import clamp_log_prob
from ..sequence_end import find_end

# The value of vLLM's `EngineCoreEventType.SCHEDULED`, copied because this module does not import
# vLLM.
_SCHEDULED = 2
# Maps abnormal finish reasons to explanations for the error message.
_ABNORMAL_ENDS = {"abort": "it was aborted", "error": "internal error"}


class SequenceReader:
    """A reader that converts the outputs for one sequence to updates.

    The reader itself detects multi-token stop words, because vLLM detects them only if it decodes
    tokens to text.
    """

    def __init__(self, request: GenerationRequest, index: int, tokens_per_block: int) -> None:
        self.request = request
        self._index = index
        self._tokens_per_block = tokens_per_block
        self._token_ids: list[int] = []
        self._cum_log_prob = 0.0
        self._num_reused_blocks = 0
        self._prompt: PromptFacts | None = None
        self._times_ns = [0, 0]
        self.is_done = False

    @property
    def has_begun(self) -> bool:
        """True if the prompt has been processed or the sequence has ended."""
        return bool(self._token_ids) or self.is_done

    def read(self, output: Any, timestamp_s: float) -> SequenceUpdate | None:
        """Return the update for `output`, or None if the sequence has not changed.

        `timestamp_s` is the monotonic time at the end of the step.
        """
        why = None if output.finish_reason is None else str(output.finish_reason)
        if why in _ABNORMAL_ENDS:
            self.is_done = True
            return SequenceUpdate(
                self.request.id,
                error=f"the engine ended the request ({_ABNORMAL_ENDS[why]}); retry the request",
            )
        if not self.has_begun and not self._index:
            self._prompt = _describe_prompt(output, self.request)
        start = len(self._token_ids)
        self._token_ids += output.new_token_ids
        end, reason = find_end(self._token_ids, start, self.request)
        if reason is None and why is not None:
            reason = "length" if why == "length" else "stop"
        if end == start and reason is None:
            return None
        self.is_done = reason is not None
        return self._update(output, start, end, reason, timestamp_s)

    def _update(
        self, output: Any, start: int, end: int, reason: FinishReason | None, timestamp_s: float
    ) -> SequenceUpdate:
        new = tuple(self._token_ids[start:end])
        log_probs: tuple[float, ...] = ()
        if self.request.return_log_probs:
            log_probs = _log_probs(output.new_logprobs, end - start)
            self._cum_log_prob += sum(log_probs)
        prompt, self._prompt = self._prompt, None
        return SequenceUpdate(
            self.request.id,
            self._index,
            new,
            reason,
            log_probs,
            self._cum_log_prob if self.request.return_log_probs else None,
            perf=self._perf(output, end, timestamp_s) if self.request.return_perf_metrics else None,
            top_log_probs=_top_log_probs(
                output.new_logprobs, self.request.num_top_log_probs, end - start
            ),
            prompt=prompt,
        )

    def _perf(self, output: Any, num_tokens: int, timestamp_s: float) -> PerfMetrics:
        scheduled_ns, first_token_ns = self._times_ns
        now_ns = _ns(timestamp_s)
        for event in output.events or ():
            if event.type == _SCHEDULED and not scheduled_ns:
                scheduled_ns = _ns(event.timestamp)
        if output.prefill_stats is not None:
            self._num_reused_blocks = (
                output.prefill_stats.num_cached_tokens // self._tokens_per_block
            )
        self._times_ns = [scheduled_ns, first_token_ns or now_ns]
        # Do not count the last token, because it is not in the KV cache yet.
        num_stored = len(self.request.input_ids) + num_tokens - 1
        total = -(-num_stored // self._tokens_per_block)
        return PerfMetrics(
            kv_cache_alloc_total_blocks=total,
            kv_cache_alloc_new_blocks=max(total - self._num_reused_blocks, 0),
            kv_cache_reused_blocks=self._num_reused_blocks,
            first_scheduled_time_ns=scheduled_ns,
            first_token_time_ns=self._times_ns[1],
            last_token_time_ns=now_ns,
        )


def _log_probs(rows: Any, num_tokens: int) -> tuple[float, ...]:
    """Return the log probabilities of the tokens in the first `num_tokens` rows.

    A token's log probability is the first value in its row. `rows` may be None if `num_tokens` is
    0.
    """
    if not num_tokens:
        return ()
    return tuple(map(clamp_log_prob, rows.logprobs[:num_tokens, 0].tolist()))


def _top_log_probs(rows: Any, count: int, num_tokens: int) -> tuple[tuple[TokenLogProb, ...], ...]:
    """Return the `count` most likely tokens in each of the first `num_tokens` rows.

    Each token is paired with its log probability. Return an empty tuple if `count` or `num_tokens`
    is 0.
    """
    if not count or not num_tokens:
        return ()
    ids = rows.logprob_token_ids[:num_tokens, 1 : count + 1].tolist()
    values = rows.logprobs[:num_tokens, 1 : count + 1].tolist()
    return tuple(
        tuple(zip(tokens, map(clamp_log_prob, log_probs), strict=True))
        for tokens, log_probs in zip(ids, values, strict=True)
    )


def _describe_prompt(output: Any, request: GenerationRequest) -> PromptFacts | None:
    """Return the number of cached prompt tokens and the prompt log probabilities in an output.

    `output` is the first output for the request. Include the log probabilities only if the request
    sets `return_prompt_log_probs`. Return None if the result would contain neither value.
    """
    stats, rows = output.prefill_stats, output.new_prompt_logprobs_tensors
    num_cached = None if stats is None else stats.num_cached_tokens
    if rows is None or not request.return_prompt_log_probs:
        return None if num_cached is None else PromptFacts(num_cached)
    return PromptFacts(
        num_cached,
        _log_probs(rows, len(rows.logprobs)),
        _top_log_probs(rows, request.num_top_log_probs, len(rows.logprobs)),
    )


def _ns(monotonic_s: float) -> int:
    return int(monotonic_s * 1e9)
