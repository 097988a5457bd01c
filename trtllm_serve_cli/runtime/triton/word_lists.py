"""Lists of words in upstream's tensor form.

`stop_words_list` and `bad_words_list` are INT32 [2, n] per row: the first line holds the words'
token ids one after another, the second where each word ends, and both are padded at the end, the
ids with 0 and the ends with -1. (Source: the Triton TensorRT-LLM backend's preprocessing model.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Words = tuple[tuple[int, ...], ...]


def encode_words(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The words of each row as INT32 [rows, 2, n], n being at least 1; empty words are left out."""
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
    """The words of one row's [2, n]. Raises `ValueError` when it is no such list."""
    if encoded.ndim != 2 or encoded.shape[0] != 2:
        raise ValueError(f"its shape is {list(encoded.shape)}; a row is [2, n]")
    words: list[tuple[int, ...]] = []
    start = 0
    for end in encoded[1].tolist():
        if end == -1:
            break
        if not start < end <= encoded.shape[1]:
            raise ValueError(f"its ends do not grow from 1 to {encoded.shape[1]}: {end}")
        words.append(tuple(encoded[0, start:end].tolist()))
        start = end
    return tuple(words)


def ends_with_word(tokens: Sequence[int], end: int, words: Words) -> bool:
    """Whether one of the words is whole with the token before position `end`."""
    return any(len(word) <= end and tuple(tokens[end - len(word) : end]) == word for word in words)


def find_word_end(tokens: Sequence[int], start: int, words: Words) -> int | None:
    """Return the position after the first word that ends behind `start`; None if none does."""
    ends = range(start + 1, len(tokens) + 1)
    return next((end for end in ends if ends_with_word(tokens, end, words)), None)


def leave_out_longer(texts: Iterable[str]) -> list[str]:
    """Those of `texts` that no other is a part of: who bans these, bans them all."""
    shortest: list[str] = []
    for text in sorted(set(texts), key=lambda text: (len(text), text)):
        if not any(part in text for part in shortest):
            shortest.append(text)
    return shortest
