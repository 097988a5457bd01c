"""Text from tokens as they come, with nothing lost and nothing said twice.

The pieces of one sequence, in order, make the text that decoding all its tokens at once makes,
however the tokens are cut into pushes. A token alone does not decide its text: its space may depend
on the token before it, and one character may take several tokens. So each piece is the difference
between two decodings of a window of tokens, one up to the last piece and one up to now, and is held
back while it ends inside a character. The window starts where a piece started, so its length stays
bounded; its start may have lost a space or the first bytes of a character, but in both decodings
alike.

Some decoders take back text when tokens follow: one broken byte spoils all the bytes before it
(Transformers' byte fallback), or a space goes before a full stop (`clean_up_tokenization_spaces`).
What has been told stays told then, and the next piece is that of the untold tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_UNFINISHED_CHARACTER = "\ufffd"
# Shortening costs a decoding of its own, so it waits until it pays.
_LONG_WINDOW = 16


class StreamDecoder:
    """The text of one growing sequence, in pieces."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        # The window's first tokens, whose text has been told.
        self._num_emitted = 0
        self._emitted = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that `token_ids` add; may be empty when they end inside a character."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def predict_windows(self, token_ids: Sequence[int]) -> list[list[int]]:
        """What `push` would most likely decode of these tokens."""
        numbers = range(1, len(token_ids) + 1)
        windows = [[*self._window, *token_ids[:number]] for number in numbers]
        if windows and len(windows[-1]) >= _LONG_WINDOW:
            windows.append([*self._window[self._num_emitted :], *token_ids])
        return windows

    def finish(self) -> str:
        """What was held back, as decoding everything at once would have it."""
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
        # Decoders may strip all space that a text starts with: start where something can be seen.
        if text.strip():
            self._restart(newest, len(newest), text)

    def _restart(self, window: list[int], num_emitted: int, emitted: str) -> None:
        self._window, self._num_emitted, self._emitted = window, num_emitted, emitted


def decode_whole(decode: Callable[[list[int]], str], token_ids: list[int]) -> str:
    """All at once the text that a `StreamDecoder` gives in pieces, broken characters included."""
    text = decode(token_ids) if token_ids else ""
    if _UNFINISHED_CHARACTER not in text:
        return text
    decoder = StreamDecoder(decode)
    return decoder.push(token_ids) + decoder.finish()
