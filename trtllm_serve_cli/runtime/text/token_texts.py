"""Cache the text of tokens that are decoded independently of other tokens.

In a byte-level vocabulary (GPT-2, Llama 3, Qwen), each token consists of bytes, and the text of a
sequence is decoded from the bytes of all its tokens. If the preceding text ends with a complete
character, a token therefore always adds the same text, unless it ends inside a character.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

UNFINISHED_CHARACTER = "\ufffd"


class TokenTexts:
    """A cache of the texts of generated tokens, for a byte-level vocabulary.

    `unfinished_ids` contains the ids of tokens that may end with an incomplete character without
    decoding to U+FFFD. A token whose text ends with U+FFFD is also treated as incomplete.
    """

    def __init__(
        self,
        decode_all: Callable[[Sequence[Sequence[int]]], list[str]],
        unfinished_ids: Set[int] = frozenset(),
    ) -> None:
        self._decode_all = decode_all
        self._unfinished_ids = unfinished_ids
        self._texts: dict[int, str | None] = {}
        # `find` returns the text that a token adds after a complete character, or None if the token
        # may end inside a character or has not been added. Each stream calls `find` for each token,
        # so for speed, it is the dictionary's `get` method itself.
        self.find: Callable[[int], str | None] = self._texts.get

    def add(self, token_ids: Set[int]) -> None:
        """Cache the texts of `token_ids`. Decode all uncached tokens in one call."""
        new = list(token_ids - self._texts.keys())
        if not new:
            return
        for token_id, text in zip(new, self._decode_all([[each] for each in new]), strict=True):
            is_unfinished = text.endswith(UNFINISHED_CHARACTER) or token_id in self._unfinished_ids
            self._texts[token_id] = None if is_unfinished else text
