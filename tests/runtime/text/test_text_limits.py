"""Test that only texts that certainly do not fit are rejected because of their length."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.request_check import MAX_WORD_TOKENS
from trtllm_serve_cli.runtime.text.text_limits import check_prompt_lengths, check_word_lengths

MEGABYTE = 1 << 20


def test_prompt_of_the_longest_tokens_is_accepted() -> None:
    check_prompt_lengths("text_input", [" " * 128 * 10] * 2, max_seq_len=10)
    with pytest.raises(InvalidRequest, match="text_input has 1281 characters"):
        check_prompt_lengths("text_input", ["a", " " * 1281], max_seq_len=10)


@pytest.mark.parametrize(
    ("prompts", "max_seq_len", "is_valid"),
    [
        (["a" * 4 * MEGABYTE], 0, True),
        (["a" * 4 * MEGABYTE, "b"], 0, False),
        (["é" * 2 * MEGABYTE, "b"], 0, False),
        (["a" * 4 * MEGABYTE, "b"], 128 * 1024, False),
        # The context needs more: 8 bytes per token.
        (["a" * 4 * MEGABYTE, "b"], MEGABYTE, True),
        (["a" * 4 * MEGABYTE, "b" * 5 * MEGABYTE], MEGABYTE, False),
    ],
    ids=["limit", "rows", "bytes", "context", "long context", "rows of a long context"],
)
def test_request_has_a_maximum_size(prompts: list[str], max_seq_len: int, is_valid: bool) -> None:
    if is_valid:
        check_prompt_lengths("text_input", prompts, max_seq_len)
    else:
        with pytest.raises(InvalidRequest, match="bytes long, but the maximum is"):
            check_prompt_lengths("text_input", prompts, max_seq_len)


@pytest.mark.parametrize(
    ("rows", "is_valid"),
    [
        ([], True),
        ([["a"] * MAX_WORD_TOKENS] * 2, True),
        ([["a"], ["a"] * (MAX_WORD_TOKENS + 1)], False),
        ([["a" * 128 * MAX_WORD_TOKENS]], True),
        ([["a" * 128 * MAX_WORD_TOKENS], ["b"]], False),
    ],
    ids=["none", "words", "too many words", "characters", "too many characters"],
)
def test_word_lists(rows: list[list[str]], is_valid: bool) -> None:
    if is_valid:
        check_word_lengths("stop_words", rows)
    else:
        with pytest.raises(InvalidRequest, match="stop_words has"):
            check_word_lengths("stop_words", rows)
