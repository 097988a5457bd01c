"""Encode and decode word lists in the tensor format of NVIDIA's backend.

`stop_words_list` and `bad_words_list` are INT32 tensors with the shape [2, n] for each row of a
request. The first vector contains the token ids of all words, padded with 0. The second vector
contains the end position of each word, padded with -1. The `preprocessing` model in NVIDIA's
backend defines this format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Words = tuple[tuple[int, ...], ...]


def encode_words(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Encode each row's words as a tensor with the shape [rows, 2, n], where n is at least 1.

    Empty words are omitted.
    """
    rows = [[word for word in words if word] for words in rows]
    flat = [[token for word in words for token in word] for words in rows]
    length = max([1, *(len(tokens) for tokens in flat)])
    encoded = np.zeros((len(rows), 2, length), dtype=np.int32)
    encoded[:, 1] = -1
    for row, words in enumerate(rows):
        encoded[row, 0, : len(flat[row])] = flat[row]
        ends = np.cumsum([len(word) for word in words], dtype=np.int32)
        encoded[row, 1, : len(ends)] = ends
    return encoded


def decode_words(encoded: np.ndarray[Any, np.dtype[np.int32]]) -> Words:
    """Decode the words of a row, which has the shape [2, n].

    Raise `ValueError` if the row is invalid.
    """
    if encoded.ndim != 2 or encoded.shape[0] != 2:
        raise ValueError(f"a row has shape {list(encoded.shape)}; send a tensor of shape [2, n]")
    words: list[tuple[int, ...]] = []
    start = 0
    for end in encoded[1].tolist():
        if end == -1:
            break
        if start == encoded.shape[1]:
            raise ValueError(
                f"a word ends at position {end}, but the previous word ends at the last position, "
                f"{start}; pad the end positions with -1"
            )
        if not start < end <= encoded.shape[1]:
            raise ValueError(
                f"a word ends at position {end}, but its end position must be between {start + 1} "
                f"and {encoded.shape[1]}"
            )
        words.append(tuple(encoded[0, start:end].tolist()))
        start = end
    return tuple(words)


def ends_with_word(tokens: Sequence[int], end: int, words: Words) -> bool:
    """Return whether `tokens[:end]` ends with one of `words`."""
    return any(len(word) <= end and tuple(tokens[end - len(word) : end]) == word for word in words)


def find_word_end(tokens: Sequence[int], start: int, words: Words) -> int | None:
    """Return the first position after `start` at which one of `words` ends.

    Return None if no word ends after `start`.
    """
    ends = range(start + 1, len(tokens) + 1)
    return next((end for end in ends if ends_with_word(tokens, end, words)), None)


def leave_out_longer(texts: Iterable[str]) -> list[str]:
    """Return `texts` without duplicates and without any text that contains another of the texts.

    The result is sorted by length. Banning a text also bans all longer texts that contain it.
    """
    shortest: list[str] = []
    for text in sorted(set(texts), key=lambda text: (len(text), text)):
        if not any(part in text for part in shortest):
            shortest.append(text)
    return shortest
