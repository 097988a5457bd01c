"""Test that only texts that certainly do not fit are rejected because of their length."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.request_check import MAX_WORD_TOKENS
from trtllm_serve_cli.runtime.text.text_limits import check_prompt_length, check_word_lengths


def test_prompt_of_the_longest_tokens_is_accepted() -> None:
    check_prompt_length("text_input", " " * 128 * 10, max_seq_len=10)
    with pytest.raises(InvalidRequest, match="text_input has 1281 characters"):
        check_prompt_length("text_input", " " * 1281, max_seq_len=10)


def test_any_prompt_is_accepted_if_the_context_is_unknown() -> None:
    check_prompt_length("text_input", "a" * 1_000_000, max_seq_len=0)


@pytest.mark.parametrize(
    ("words", "is_valid"),
    [
        (["a"] * MAX_WORD_TOKENS, True),
        (["a"] * (MAX_WORD_TOKENS + 1), False),
        (["a" * 128 * MAX_WORD_TOKENS], True),
        (["a" * 128 * MAX_WORD_TOKENS, "b"], False),
    ],
)
def test_word_lists(words: list[str], is_valid: bool) -> None:
    if is_valid:
        check_word_lengths("stop_words", words)
    else:
        with pytest.raises(InvalidRequest, match="stop_words has"):
            check_word_lengths("stop_words", words)
