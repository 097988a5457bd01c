"""Build the text responses to one row of a request from an engine's updates."""

from __future__ import annotations

import numpy as np

from ..engine import SequenceUpdate
from ..text.detokenize import TextStream, decode_whole
from ..text.step_decoder import StepDecoder
from ..triton.tensors import Array, RowRequest
from .responses import RowResponseBuilder


class RowTextResponseBuilder:
    """A builder like `RowResponseBuilder`, for responses with text instead of token ids.

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
        self._token_responses = RowResponseBuilder(row, arrival_time_ns, is_streaming=is_streaming)
        self._decoder = decoder
        self._is_streaming = is_streaming and not row.is_beam_search
        self._accumulates = accumulates
        self._streams: dict[int, TextStream] = {}

    @property
    def is_done(self) -> bool:
        """Return whether all sequences have ended."""
        return self._token_responses.is_done

    def add(self, update: SequenceUpdate) -> dict[str, Array] | None:
        """Add an update, and return the response to send now, if any."""
        sequence = update.sequence_index
        if self._is_streaming and sequence not in self._streams:
            decoder = self._decoder.open_stream(update.request_id, sequence)
            self._streams[sequence] = TextStream(decoder, accumulates=self._accumulates)
        tensors = self._token_responses.add(update)
        return tensors and self._decode_outputs(tensors, has_ended=update.finish_reason is not None)

    def end_early(self) -> list[dict[str, Array]]:
        """End all sequences, and return the unsent responses."""
        return [
            self._decode_outputs(tensors, has_ended=True)
            for tensors in self._token_responses.end_early()
        ]

    def _decode_outputs(self, tensors: dict[str, Array], *, has_ended: bool) -> dict[str, Array]:
        lengths = tensors.pop("sequence_length")[0]
        sequences = [
            ids[:length].tolist()
            for ids, length in zip(tensors.pop("output_ids")[0], lengths, strict=True)
        ]
        if self._is_streaming:
            stream = self._streams[int(tensors["sequence_index"][0, 0])]
            texts = [stream.push(sequences[0], is_last=has_ended)]
        else:
            texts = [decode_whole(self._decoder.decode, ids) for ids in sequences]
        # Return `text_output` as a vector, as NVIDIA's clients expect.
        text_output = np.array([text.encode() for text in texts], dtype=object)
        return {"text_output": text_output, **tensors}
