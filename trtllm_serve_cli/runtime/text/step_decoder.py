"""Decode the new tokens of all sequences in an engine step with one tokenizer call.

OpenVINO's tokenizer decodes twenty sequences as fast as one sequence. With one call per token, a
text model would spend a third of its time on decoding. `StepDecoder` therefore predicts which token
windows the streams will decode. It decodes these windows together before the step's updates are
delivered. If a prediction is wrong, the stream decodes its window in a separate call.

If the vocabulary is byte-level, a token is decoded only when it is generated for the first time, or
when a character is incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from weakref import WeakValueDictionary

from ..engine import SequenceUpdate
from .detokenize import StreamDecoder
from .token_texts import TokenTexts


class StepDecoder:
    """A decoder for all streams of a model.

    The decoder holds only weak references to its streams, so the caller must keep a reference to
    each stream that it uses. `unfinished_ids` is the tokenizer's `unfinished_ids` attribute.
    """

    def __init__(
        self,
        decode_all: Callable[[Sequence[Sequence[int]]], list[str]],
        unfinished_ids: Set[int] | None = None,
    ) -> None:
        self._decode_all = decode_all
        self._token_texts = (
            None if unfinished_ids is None else TokenTexts(decode_all, unfinished_ids)
        )
        self._streams: WeakValueDictionary[tuple[int, int], StreamDecoder] = WeakValueDictionary()
        self._texts: dict[tuple[int, ...], str] = {}

    def open_stream(self, request_id: int, sequence_index: int) -> StreamDecoder:
        """Return a new stream that decodes the text of one sequence."""
        stream = StreamDecoder(self.decode, self._token_texts)
        self._streams[request_id, sequence_index] = stream
        return stream

    def decode_ahead(self, updates: Iterable[SequenceUpdate]) -> None:
        """Decode the new tokens of one step's updates before the updates are delivered.

        All windows are decoded in one call. A single window is not decoded ahead, because the
        stream itself can decode it in one call.
        """
        if not self._streams:
            return
        if self._token_texts is not None:
            updates = self._without_known(updates, self._token_texts)
        windows: list[list[int]] = []
        for update in updates:
            stream = self._streams.get((update.request_id, update.sequence_index))
            if stream is not None:
                windows += stream.predict_windows(update.token_ids)
        texts = self._decode_all(windows) if len(windows) > 1 else []
        self._texts = {tuple(window): text for window, text in zip(windows, texts, strict=False)}

    def _without_known(
        self, updates: Iterable[SequenceUpdate], token_texts: TokenTexts
    ) -> list[SequenceUpdate]:
        """Add the tokens of all updates to `token_texts`.

        Return the updates that contain a token without a cached text.
        """
        updates = list(updates)
        token_texts.add({each for update in updates for each in update.token_ids})
        return [each for each in updates if None in map(token_texts.find, each.token_ids)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, from the cache of `decode_ahead` if possible."""
        text = self._texts.get(tuple(token_ids))
        return self._decode_all([token_ids])[0] if text is None else text
