"""Encoding and decoding of word lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.triton.word_lists import (
    Words,
    decode_words,
    encode_words,
    find_word_end,
    leave_out_longer,
)

_WORD = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(tuple)
_ROWS = st.lists(st.lists(_WORD, max_size=4).map(tuple), min_size=1, max_size=3)


@given(_ROWS)
def test_decodes_what_was_encoded(rows: list[Words]) -> None:
    assert [decode_words(row) for row in encode_words(rows)] == rows


def test_encodes_in_upstreams_format() -> None:
    encoded = encode_words([[(5,), (6, 7)], []])
    assert encoded.tolist() == [[[5, 6, 7], [1, 3, -1]], [[0, 0, 0], [-1, -1, -1]]]


def test_skips_words_without_tokens() -> None:
    assert decode_words(encode_words([[(), (5,), ()]])[0]) == ((5,),)


@pytest.mark.parametrize("shape", [(2,), (1, 3), (3, 2), (1, 2, 3)])
def test_rejects_an_invalid_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"a row has shape \[.*\]; send a tensor of shape \[2, n\]"
    ):
        decode_words(np.ones(shape, dtype=np.int32))


@pytest.mark.parametrize("ends", [[0, -1, -1], [2, 2, -1], [2, 1, -1], [4, -1, -1], [-2, 1, 2]])
def test_rejects_ends_that_do_not_increase(ends: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a word ends at position .*, but .* between [1-3] and 3"):
        decode_words(np.array([[5, 6, 7], ends], dtype=np.int32))


def test_rejects_a_word_after_the_last_position() -> None:
    with pytest.raises(ValueError, match="position 4, but the previous word ends at the last"):
        decode_words(np.array([[5, 6, 7], [1, 3, 4]], dtype=np.int32))


def test_removes_words_that_contain_another() -> None:
    assert leave_out_longer(["w10", "aw1", "w1", "b", "w1"]) == ["b", "w1"]


@given(st.lists(st.text("ab", min_size=1, max_size=4)), st.text("ab", max_size=9))
def test_remaining_words_ban_the_same_texts(words: list[str], text: str) -> None:
    kept = leave_out_longer(words)
    assert any(word in text for word in kept) == any(word in text for word in words)


@pytest.mark.parametrize(
    ("tokens", "start", "end"),
    [
        ([1, 2, 3, 4], 0, 3),
        ([1, 2, 3, 4], 2, 3),
        ([2, 3, 4], 2, None),
        ([5], 0, 1),
        ([5], 1, None),
        ([1, 2], 2, None),
        ([3], 0, None),
    ],
)
def test_word_ends_where_its_last_token_is(tokens: list[int], start: int, end: int | None) -> None:
    assert find_word_end(tokens, start, ((2, 3), (5,))) == end


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.integers(0, 12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=3),
)
def test_finds_words_wherever_the_tokens_are_split(
    tokens: list[int], cut: int, words: list[tuple[int, ...]]
) -> None:
    first = find_word_end(tokens[:cut], 0, tuple(words))
    second = find_word_end(tokens, min(cut, len(tokens)), tuple(words))
    assert find_word_end(tokens, 0, tuple(words)) == (second if first is None else first)
