"""Build response tensors from engine updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..engine import PerfMetrics, SequenceUpdate
from ..triton.tensors import Array, RowRequest, as_number, pack_log_probs, pack_sequences


class ResponseBuilder(Protocol):
    """A builder for the responses to one row of a request."""

    @property
    def is_done(self) -> bool:
        """True if the row has ended."""

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""

    def end_early(self) -> list[dict[str, Array]]:
        """End the row early and return its unsent responses."""


class RowResponseBuilder:
    """A builder for the token responses to one row of a request.

    `unfinished` contains the indices of the sequences that have not ended. `is_streaming` is false
    for beam search, because beams are sent only after all beams have ended.
    """

    def __init__(self, row: RowRequest, arrival_time_ns: int, *, is_streaming: bool) -> None:
        self._row = row
        self._arrival_time_ns = arrival_time_ns
        self.is_streaming = is_streaming and not row.is_beam_search
        num_sequences = int(row.fields["num_return_sequences"])
        self._tokens: list[list[int]] = [[] for _ in range(num_sequences)]
        self._log_probs: list[list[float]] = [[] for _ in range(num_sequences)]
        self._cum: list[float] = [0.0] * num_sequences
        self.unfinished = set(range(num_sequences))
        self._perf = PerfMetrics()

    @property
    def is_done(self) -> bool:
        """True if all sequences have ended."""
        return not self.unfinished

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        sequence = update.sequence_index
        self._tokens[sequence] += update.token_ids
        self._log_probs[sequence] += update.log_probs
        self._perf = update.perf or self._perf
        if update.cum_log_prob is not None:
            self._cum[sequence] = update.cum_log_prob
        if update.finish_reason is not None:
            self.unfinished.discard(sequence)
        if self._row.is_beam_search:
            return self._build(range(len(self._tokens))) if self.is_done else None
        if self.is_streaming or update.finish_reason is not None:
            return self._build([sequence])
        return None

    def end_early(self) -> list[dict[str, Array]]:
        """End the unfinished sequences and return the responses with their tokens.

        If `is_streaming` is true, return no responses, because all tokens have already been sent.
        """
        if self.is_streaming or not self.unfinished:
            return []
        unfinished, self.unfinished = sorted(self.unfinished), set()
        if self._row.is_beam_search:
            return [self._build(unfinished)]
        return [self._build([each]) for each in unfinished]

    def _build(self, sequences: Sequence[int]) -> dict[str, Array]:
        row = self._row
        tokens = [self._tokens[each] for each in sequences]
        num_new = sum(len(each) for each in tokens)
        if not self.is_streaming and not row.exclude_input:
            tokens = [[*row.fields["input_ids"], *each] for each in tokens]
        tensors = self.pack(sequences, tokens)
        if row.fields.get("return_log_probs"):
            log_probs = [self._log_probs[each] for each in sequences]
            tensors["output_log_probs"] = pack_log_probs(tokens, log_probs)
            cum = [[self._cum[each] for each in sequences]]
            tensors["cum_log_probs"] = np.array(cum, dtype=np.float32)
        tensors["batch_index"] = as_number(row.batch_index)
        tensors["sequence_index"] = as_number(sequences[0])
        if row.returns_num_input_tokens:
            tensors["num_input_tokens"] = as_number(len(row.fields["input_ids"]))
        if row.returns_num_output_tokens:
            tensors["num_output_tokens"] = as_number(num_new)
        if row.fields.get("return_perf_metrics"):
            tensors |= pack_perf_metrics(self._perf, self._arrival_time_ns)
        for each in sequences:
            self._tokens[each], self._log_probs[each] = [], []
        return tensors

    def pack(self, sequences: Sequence[int], tokens: Sequence[list[int]]) -> dict[str, Array]:
        """Return the output tensors for `sequences`, whose token ids are in `tokens`."""
        return pack_sequences(tokens, self._row.pad_id)


def pack_perf_metrics(perf: PerfMetrics, arrival_time_ns: int) -> dict[str, Array]:
    """Return the performance metrics as the outputs that `return_perf_metrics` requests.

    Times are in nanoseconds on the monotonic clock.
    """
    drafted, accepted = perf.total_draft_tokens, perf.total_accepted_draft_tokens
    return {
        "kv_cache_alloc_new_blocks": as_number(perf.kv_cache_alloc_new_blocks),
        "kv_cache_reused_blocks": as_number(perf.kv_cache_reused_blocks),
        "kv_cache_alloc_total_blocks": as_number(perf.kv_cache_alloc_total_blocks),
        "arrival_time_ns": _time(arrival_time_ns),
        "first_scheduled_time_ns": _time(perf.first_scheduled_time_ns),
        "first_token_time_ns": _time(perf.first_token_time_ns),
        "last_token_time_ns": _time(perf.last_token_time_ns),
        "acceptance_rate": np.array([[accepted / drafted if drafted else 0.0]], dtype=np.float32),
        "total_accepted_draft_tokens": as_number(accepted),
        "total_draft_tokens": as_number(drafted),
    }


def merge_responses(responses: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Merge `responses` into one response with a row per `batch_index`.

    The sequences of a row are adjacent, like beams. Shorter sequences are padded with zeros, and
    `sequence_length` contains the lengths of all sequences. If an output is missing in some rows,
    its values for these rows are zero.
    """
    rows: dict[int, list[dict[str, Array]]] = {}
    for response in sorted(responses, key=lambda each: int(each["sequence_index"][0, 0])):
        rows.setdefault(int(response["batch_index"][0, 0]), []).append(response)
    joined = [_join_sequences(rows[row]) for row in sorted(rows)]
    # Collect the outputs of all rows, because rows may have different outputs.
    samples = {name: array for row in joined for name, array in row.items()}
    return {
        name: _concatenate([row.get(name, np.zeros_like(sample)) for row in joined], axis=0)
        for name, sample in samples.items()
    }


_PER_SEQUENCE = ("output_ids", "sequence_length", "output_log_probs", "cum_log_probs")


def _join_sequences(responses: Sequence[dict[str, Array]]) -> dict[str, Array]:
    joined = dict(responses[-1])
    for name in _PER_SEQUENCE:
        if name in joined:
            joined[name] = _concatenate([each[name] for each in responses], axis=1)
    if "text_output" in joined:
        joined["text_output"] = np.concatenate([each["text_output"] for each in responses])
    if "num_output_tokens" in joined:
        joined["num_output_tokens"] = np.sum(
            [each["num_output_tokens"] for each in responses], axis=0, dtype=np.int32
        )
    joined["sequence_index"] = responses[0]["sequence_index"]
    return joined


def _concatenate(arrays: Sequence[Array], axis: int) -> Array:
    return np.concatenate(_padded(arrays, axis), axis=axis)


def _padded(arrays: Sequence[Array], axis: int) -> list[Array]:
    """Pad `arrays` with zeros to the same size along all axes except `axis`."""
    longest = np.max([array.shape for array in arrays], axis=0)
    padded = []
    for array in arrays:
        width = [
            (0, 0 if at == axis else int(longest[at]) - size) for at, size in enumerate(array.shape)
        ]
        padded.append(np.pad(array, width))
    return padded


def _time(value_ns: int) -> Array:
    return np.array([[value_ns]], dtype=np.int64)
