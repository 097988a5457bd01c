"""Build the padded token responses for the gpt layout.

All sequences of a response are padded at the end to the same length. As in TensorRT-LLM's Python
runtime, this length is the length of the longest prompt plus the maximum number of new tokens.
Source: `finalize_decoder` in tensorrt_llm/runtime/generation.py in NVIDIA/TensorRT-LLM, versions
0.5 to 0.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import SequenceUpdate
from ..triton.tensors import Array, RowRequest
from .responses import RowResponseBuilder


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """A row of a request, with the lengths to which its outputs are padded.

    `num_tokens` is the padded length of each sequence, including the prompt. `num_new_tokens` is
    the padded length of the log probabilities.
    """

    row: RowRequest
    num_tokens: int
    num_new_tokens: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the `GenerationRequest`, except `id`."""
        return self.row.fields


def pad_rows(rows: Sequence[RowRequest]) -> list[PaddedRow]:
    """Return each row with the lengths to which all rows of the request are padded."""
    longest = max(len(row.fields["input_ids"]) for row in rows)
    num_new = max(0, *(int(row.fields["max_new_tokens"]) for row in rows))
    return [PaddedRow(row, longest + num_new, num_new) for row in rows]


class PaddedResponseBuilder:
    """A builder for the single response to one row.

    The response contains all sequences, each starting with the prompt.
    """

    def __init__(self, padded: PaddedRow, arrival_time_ns: int) -> None:
        self._padded = padded
        # Sequences are padded with the end id, or with the pad id if the request has no end id.
        self._end_id = int(padded.fields.get("end_id", padded.row.pad_id))
        self._responses = RowResponseBuilder(padded.row, arrival_time_ns, is_streaming=False)

    @property
    def is_done(self) -> bool:
        """True if all sequences have ended."""
        return self._responses.is_done

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        tensors = self._responses.add(update)
        return tensors and self._pad(tensors)

    def end_early(self) -> list[dict[str, Array]]:
        """End all sequences and return the unsent responses."""
        return [self._pad(tensors) for tensors in self._responses.end_early()]

    def _pad(self, tensors: dict[str, Array]) -> dict[str, Array]:
        """Return the outputs of the gpt layout, padded to the same length for all rows.

        `output_ids` has the shape [1, beams, tokens]. `log_probs`, which contains the values of
        `output_log_probs`, has the shape [1, new tokens, beams].
        """
        ids, lengths = tensors["output_ids"], tensors["sequence_length"]
        num_beams = ids.shape[1]
        output_ids = np.full((1, num_beams, self._padded.num_tokens), self._end_id, np.int32)
        for beam, length in enumerate(lengths[0]):
            output_ids[0, beam, :length] = ids[0, beam, :length]
        padded = {name: tensors[name] for name in ("batch_index", "sequence_index")}
        padded["output_ids"] = output_ids
        if "output_log_probs" in tensors:
            # Only new tokens have log probabilities.
            new = tensors["output_log_probs"][0, :, len(self._padded.fields["input_ids"]) :]
            log_probs = np.zeros((1, self._padded.num_new_tokens, num_beams), np.float32)
            log_probs[0, : new.shape[1]] = new.T
            padded["log_probs"] = log_probs
        return padded
