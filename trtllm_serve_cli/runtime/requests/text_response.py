"""Build the text responses to one row of a request from engine updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine import SequenceUpdate
from ..text.detokenize import TextStream, decode_whole
from ..text.step_decoder import StepDecoder
from ..triton.tensors import Array, RowRequest
from .responses import RowResponseBuilder


class RowTextResponseBuilder(RowResponseBuilder):
    """A builder for responses with text instead of token ids.

    If `accumulates` is true, each streamed response contains the whole text so far.
    """

    def __init__(
        self,
        row: RowRequest,
        decoder: StepDecoder,
        arrival_time_ns: int,
        *,
        is_streaming: bool,
        accumulates: bool = False,
    ) -> None:
        super().__init__(row, arrival_time_ns, is_streaming=is_streaming)
        self._decoder = decoder
        self._accumulates = accumulates
        self._streams: dict[int, TextStream] = {}

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update. Return the response to send now, or None."""
        sequence = update.sequence_index
        if self.is_streaming and sequence not in self._streams:
            decoder = self._decoder.open_stream(update.request_id, sequence)
            self._streams[sequence] = TextStream(decoder, accumulates=self._accumulates)
        return super().add(update)

    def end_early(self) -> list[dict[str, Array]]:
        """End the unfinished sequences and return the responses with their unsent text.

        A stream can have unsent text only if its last character is incomplete.
        """
        if not self.is_streaming:
            return super().end_early()
        unfinished, self.unfinished = sorted(self.unfinished), set()
        left = {each: self._streams[each].finish() for each in unfinished if each in self._streams}
        return [
            {**self._build([each]), "text_output": _as_strings([text])}
            for each, text in left.items()
            if text
        ]

    def pack(self, sequences: Sequence[int], tokens: Sequence[list[int]]) -> dict[str, Array]:
        """Return the `text_output` tensor with the texts of `tokens`."""
        if self.is_streaming:
            (sequence,) = sequences
            has_ended = sequence not in self.unfinished
            texts = [self._streams[sequence].push(tokens[0], is_last=has_ended)]
        else:
            texts = [decode_whole(self._decoder.decode, ids) for ids in tokens]
        # Return `text_output` as a vector, as NVIDIA's clients expect.
        return {"text_output": _as_strings(texts)}


def _as_strings(texts: Sequence[str]) -> Array:
    return np.array([text.encode() for text in texts], dtype=object)
