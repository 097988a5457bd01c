"""Decode a stream of tokens to text without losing or repeating characters.

`StreamDecoder` returns a sequence's text in pieces. Together, the pieces equal the text of all
tokens decoded in one call, regardless of how the tokens are split across calls to `push`. Decoders
that change earlier text are an exception (see below).

A token cannot be decoded alone: its leading space may depend on the previous token, and one
character may consist of several tokens. `StreamDecoder` therefore decodes a window of the latest
tokens twice: without and with the new tokens. The difference between the two texts is the next
piece. A piece that ends inside a character is held back until the character is complete.

To limit the window's length, a long window is cut to the tokens of the latest piece. A space or
part of a character may then be missing at the window's start. It is missing from both texts, so it
does not affect their difference. If the latest piece is whitespace, the window's first tokens are
kept before it, because decoders may strip leading whitespace.

If many tokens have been held back, they are not the beginning of one character. Their text is then
emitted except for its last characters. Tokens that decode to no text, such as special tokens, stay
in the window, but the window is not decoded until a token with text follows.

Some decoders change earlier text when more tokens follow. In Transformers' byte fallback, one
invalid byte changes the text of the bytes before it. `clean_up_tokenization_spaces` removes the
space before a full stop. `StreamDecoder` cannot change text that it has already emitted. If earlier
text changes, it decodes the new tokens without the earlier tokens and emits their text as the next
piece.

With `TokenTexts`, a token with a cached text is decoded only if the window contains earlier tokens,
because they may end inside a character. The window is cleared after such a token, unless text is
still held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .token_texts import UNFINISHED_CHARACTER, TokenTexts

# Minimum length, in tokens, at which a window is shortened. Shorter windows are kept, because
# shortening requires another decode call.
_LONG_WINDOW = 16
# Maximum number of characters of an incomplete character: U+FFFD for each of its bytes.
_MAX_UNFINISHED = 3


class StreamDecoder:
    """A decoder that returns the text of one growing sequence in pieces.

    `token_texts` is an optional cache for a byte-level vocabulary.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], token_texts: TokenTexts | None = None
    ) -> None:
        self._decode = decode
        self._token_texts = token_texts
        self._window: list[int] = []
        # The number of tokens at the window's start whose text has already been emitted.
        self._num_emitted = 0
        self._emitted = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that `token_ids` add to the sequence.

        If the last token ends inside a character, the text since the last complete piece is held
        back.
        """
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def predict_windows(self, token_ids: Sequence[int]) -> list[list[int]]:
        """Return the windows that `push` will decode if each token adds visible text."""
        if self._holds_many:
            return [[each] for each in token_ids]
        windows = []
        window, num_emitted = self._window, self._num_emitted
        for token_id in token_ids:
            newest = [*window[num_emitted:], token_id]
            window = [*window, token_id]
            windows.append(window)
            if len(window) >= _LONG_WINDOW:
                windows.append(newest)
                window = newest
            num_emitted = len(window)
        return windows

    def finish(self) -> str:
        """Return the text that is still held back and reset the decoder."""
        piece = self._pending()
        self._restart([], 0, "")
        return piece

    @property
    def _holds_many(self) -> bool:
        """True if too many tokens are held back to decode them again for each token."""
        return len(self._window) - self._num_emitted >= _LONG_WINDOW

    def _push_one(self, token_id: int) -> str:
        text = None if self._token_texts is None else self._token_texts.find(token_id)
        if text is not None and not self._window:
            return text
        holds_many = self._holds_many
        self._window.append(token_id)
        if holds_many and not self._decode([token_id]):
            return ""
        piece = self._pending()
        if not piece or piece.endswith(UNFINISHED_CHARACTER):
            return self._emit_part(piece) if holds_many else ""
        if text is None:
            self._advance(piece)
        else:
            self._restart([], 0, "")
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
        if text.strip():
            self._restart(newest, len(newest), text)
            return
        # Decoders may strip leading whitespace, so keep other tokens before it.
        window = [*self._window[: len(self._window) // 2], *newest]
        text = self._decode(window)
        if text == self._decode(window[: -len(newest)]) + piece:
            self._restart(window, len(window), text)

    def _emit_part(self, piece: str) -> str:
        """Return the part of an unfinished piece that further tokens cannot change.

        Cut the window to its latest tokens, unless their text does not show how the piece ends.
        """
        window = self._window[-_LONG_WINDOW:]
        text = self._decode(window)
        num_held = _MAX_UNFINISHED if text.endswith(UNFINISHED_CHARACTER) else 0
        end = len(text) - num_held
        if len(text) <= _MAX_UNFINISHED or not piece.endswith(text[end:]):
            return ""
        self._restart(window, len(window) - num_held, text[:end])
        return piece[: len(piece) - num_held]

    def _restart(self, window: list[int], num_emitted: int, emitted: str) -> None:
        self._window, self._num_emitted, self._emitted = window, num_emitted, emitted


class TextStream:
    """A stream that returns the text of one sequence in pieces.

    If `accumulates` is true, each piece contains the whole text so far. Otherwise, each piece
    contains only the new text.
    """

    def __init__(self, decoder: StreamDecoder, *, accumulates: bool) -> None:
        self._decoder = decoder
        self._accumulates = accumulates
        self._text = ""

    def push(self, token_ids: Iterable[int], *, is_last: bool = False) -> str:
        """Return the piece for `token_ids`. If `is_last` is set, include any held-back text."""
        new = self._decoder.push(token_ids)
        return self._piece(new + self._decoder.finish() if is_last else new)

    def finish(self) -> str:
        """Return the last piece, or an empty string if no text is held back."""
        remaining = self._decoder.finish()
        return self._piece(remaining) if remaining else ""

    def _piece(self, new: str) -> str:
        if not self._accumulates:
            return new
        self._text += new
        return self._text


def decode_whole(decode: Callable[[list[int]], str], token_ids: list[int]) -> str:
    """Decode `token_ids` to the text that a `StreamDecoder` would return in pieces.

    This text may differ from the result of `decode` if the tokens contain invalid bytes.
    """
    text = decode(token_ids) if token_ids else ""
    if UNFINISHED_CHARACTER not in text:
        return text
    decoder = StreamDecoder(decode)
    return decoder.push(token_ids) + decoder.finish()
