"""Decode the tokens of all sequences of an engine step in one call of the tokenizer.

A call of OpenVINO's tokenizer takes as long for twenty sequences as for one, and one call per token
was a third of the cost of a text model. `StepDecoder` therefore predicts the windows that the
streams will decode, and decodes them together before the step's updates are delivered. If a
prediction is wrong, the stream decodes its window in a separate call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

from ..engine import SequenceUpdate
from .detokenize import StreamDecoder


class StepDecoder:
    """Decodes the streams of one model. A stream is kept while the caller has a reference to it."""

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
        """Decode the updates of one step; call it before the updates are delivered."""
        windows: list[list[int]] = []
        for update in updates:
            stream = self._streams.get((update.request_id, update.sequence_index))
            if stream is not None:
                windows += stream.predict_windows(update.token_ids)
        texts = self._decode_all(windows) if len(windows) > 1 else []
        self._texts = {tuple(window): text for window, text in zip(windows, texts, strict=False)}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, from `decode_ahead` if it has predicted them."""
        text = self._texts.get(tuple(token_ids))
        return self._decode_all([token_ids])[0] if text is None else text
