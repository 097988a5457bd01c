"""Decode the tokens of all sequences of an engine step in one call of the tokenizer.

A call of OpenVINO's tokenizer takes as long for one sequence as for twenty, and one call per token
was a third of the cost of a text model. The windows that the streams will decode are therefore
decoded together before the step's updates are delivered, and looked up by their tokens. A wrong
prediction costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

from ..engine import SequenceUpdate
from .detokenize import StreamDecoder


class StepDecoder:
    """Decodes for one model; a stream lives as long as the caller references it."""

    def __init__(self, decode_all: Callable[[Sequence[Sequence[int]]], list[str]]) -> None:
        self._decode_all = decode_all
        self._streams: WeakValueDictionary[tuple[int, int], StreamDecoder] = WeakValueDictionary()
        self._texts: dict[tuple[int, ...], str] = {}

    def open_stream(self, request_id: int, sequence_index: int) -> StreamDecoder:
        """Return a decoder for the text of this sequence."""
        stream = StreamDecoder(self.decode)
        self._streams[request_id, sequence_index] = stream
        return stream

    def decode_ahead(self, updates: Iterable[SequenceUpdate]) -> None:
        """Decode the updates of one step, before they are delivered."""
        windows: list[list[int]] = []
        for update in updates:
            stream = self._streams.get((update.request_id, update.sequence_index))
            if stream is not None:
                windows += stream.predict_windows(update.token_ids)
        texts = self._decode_all(windows) if len(windows) > 1 else []
        self._texts = {tuple(window): text for window, text in zip(windows, texts, strict=False)}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens."""
        text = self._texts.get(tuple(token_ids))
        return self._decode_all([token_ids])[0] if text is None else text
