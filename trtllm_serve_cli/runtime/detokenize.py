"""Text from tokens as they come, with nothing lost and nothing said twice.

The pieces of one sequence, in order, make exactly the text that decoding all its tokens at once
makes. A token alone does not decide its text: its space may depend on the token before it, and
one character may take several tokens. So each piece is the difference between two decodings that
start at the same token: one up to the last piece, one up to now; it is held back while it ends
inside a character. The window starts one piece back, which is far enough: the last character that
was told began no earlier, or the bytes before it are dropped from both decodings alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_UNFINISHED_CHARACTER = "\ufffd"


class StreamDecoder:
    """The text of one growing sequence, in pieces."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        # The window's first tokens, whose text has been told.
        self._num_told = 0

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that `token_ids` add; may be empty when they end inside a character."""
        self._window += token_ids
        piece = self._untold()
        if not piece or piece.endswith(_UNFINISHED_CHARACTER):
            return ""
        self._window = self._window[self._num_told :]
        self._num_told = len(self._window)
        return piece

    def finish(self) -> str:
        """What was held back, as decoding everything at once would have it."""
        piece = self._untold()
        self._window, self._num_told = [], 0
        return piece

    def _untold(self) -> str:
        if self._num_told == len(self._window):
            return ""
        told = self._decode(self._window[: self._num_told]) if self._num_told else ""
        return self._decode(self._window)[len(told) :]
