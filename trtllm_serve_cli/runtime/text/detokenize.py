"""Decode a stream of tokens to text, without loss or repetition.

The pieces of one sequence add up to the text of all its tokens decoded together, for any split of
the tokens into calls of `push`.

A token cannot be decoded alone: its leading space may depend on the token before it, and one
character may need several tokens. `StreamDecoder` therefore decodes a window of the latest tokens.
The piece is the difference between two texts of the window: without and with the new tokens. A
piece that ends inside a character is held back. The window starts where an earlier piece started,
so that its length is bounded. A space or part of a character may be missing at the window's start,
but it is then missing from both texts.

Some decoders change earlier text when tokens follow: one broken byte replaces all bytes before it
(Transformers' byte fallback), or the space before a full stop is removed
(`clean_up_tokenization_spaces`). `StreamDecoder` cannot change text that it has emitted. The next
piece is then the text of the tokens that follow, decoded without the earlier tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_UNFINISHED_CHARACTER = "\ufffd"
# Shortening the window requires another decoding, so it is done only for long windows.
_LONG_WINDOW = 16


class StreamDecoder:
    """Decodes the text of one growing sequence in pieces."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        # The number of tokens at the window's start whose text has been emitted.
        self._num_emitted = 0
        self._emitted = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that `token_ids` add; it may be empty if they end inside a character."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def predict_windows(self, token_ids: Sequence[int]) -> list[list[int]]:
        """Return the windows that `push` will probably decode for these tokens."""
        numbers = range(1, len(token_ids) + 1)
        windows = [[*self._window, *token_ids[:number]] for number in numbers]
        if windows and len(windows[-1]) >= _LONG_WINDOW:
            windows.append([*self._window[self._num_emitted :], *token_ids])
        return windows

    def finish(self) -> str:
        """Return the text that was held back, so that the pieces add up to the whole text."""
        piece = self._pending()
        self._restart([], 0, "")
        return piece

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        piece = self._pending()
        if not piece or piece.endswith(_UNFINISHED_CHARACTER):
            return ""
        self._advance(piece)
        return piece

    def _pending(self) -> str:
        if self._num_emitted == len(self._window):
            return ""
        text = self._decode(self._window)
        if not text.startswith(self._emitted):
            self._restart(self._window[self._num_emitted :], 0, "")
            text = self._decode(self._window)
        return text[len(self._emitted) :]

    def _advance(self, piece: str) -> None:
        newest = self._window[self._num_emitted :]
        self._restart(self._window, len(self._window), self._emitted + piece)
        if len(self._window) < _LONG_WINDOW:
            return
        text = self._decode(newest)
        # Start the window only at visible text, because decoders may strip leading whitespace.
        if text.strip():
            self._restart(newest, len(newest), text)

    def _restart(self, window: list[int], num_emitted: int, emitted: str) -> None:
        self._window, self._num_emitted, self._emitted = window, num_emitted, emitted


def decode_whole(decode: Callable[[list[int]], str], token_ids: list[int]) -> str:
    """Return the text that the pieces of a `StreamDecoder` add up to, even if bytes are broken."""
    text = decode(token_ids) if token_ids else ""
    if _UNFINISHED_CHARACTER not in text:
        return text
    decoder = StreamDecoder(decode)
    return decoder.push(token_ids) + decoder.finish()
