"""Text offsets of the tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.gateway.fakes import LetterTokenizer
from trtllm_serve_cli.gateway.endpoints.completion_log_probs import describe_prompt
from trtllm_serve_cli.runtime.engine import PromptFacts

SPECIAL, PART = 0, 1


class PartTokenizer(LetterTokenizer):
    """A tokenizer with a token for a part of a character, whose text alone is `part`."""

    def __init__(self, part: str) -> None:
        self._part = part

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = super().decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text.replace(chr(PART), self._part)


@pytest.mark.parametrize(
    ("token_ids", "text", "part", "offsets"),
    [
        ((ord("d"), PART, PART, ord("e")), "d😀e", "", [0, 1, 1, 1]),
        ((ord("d"), PART, PART, ord("e")), "d😀e", "\ufffd", [0, 1, 2, 3]),
        ((SPECIAL, ord("d"), ord("e")), "de", "", [0, 0, 1]),
        ((SPECIAL, PART, PART, ord("e")), "😀e", "\ufffd", [0, 0, 1, 2]),
        ((SPECIAL, ord("d")), "\0d", "", [0, 1]),
    ],
    ids=["empty part", "U+FFFD", "special token", "special token and U+FFFD", "special text"],
)
def test_offsets_start_at_the_first_token_of_the_text(
    token_ids: tuple[int, ...], text: str, part: str, offsets: list[int]
) -> None:
    facts = PromptFacts(log_probs=(-0.5,) * (len(token_ids) - 1))
    described = describe_prompt(PartTokenizer(part), token_ids, text, facts)
    assert described["text_offset"] == offsets
