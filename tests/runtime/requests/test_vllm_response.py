"""Responses of the vllm layout, whole and in pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.requests.vllm_response import (
    Outputs,
    TextRequest,
    TextResponseBuilder,
)

TEXT = "one two three"
FIELDS = {"input_ids": (112,), "max_new_tokens": 50, "num_return_sequences": 1}


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def respond(cuts: list[int], *, is_streaming: bool, **options: Any) -> list[Any]:
    """Return the responses to the updates into which `cuts` divides the text."""
    request = TextRequest(FIELDS, outputs=Outputs(num_output_tokens=True), **options)
    builder = TextResponseBuilder(request, decode, is_streaming=is_streaming)
    ends = [0, *sorted({cut for cut in cuts if cut < len(TEXT)}), len(TEXT)]
    updates = [
        SequenceUpdate(
            0, token_ids=tuple(map(ord, TEXT[start:end])),
            finish_reason="stop" if end == len(TEXT) else None,
        )
        for start, end in pairwise(ends)
    ]  # fmt: skip
    return [response for each in updates if (response := builder.add(each)) is not None]


def text(responses: list[Any]) -> str:
    return b"".join(each["text_output"][0] for each in responses).decode()


CUTS = st.lists(st.integers(1, len(TEXT)))


@given(CUTS, st.booleans())
def test_pieces_add_up_to_the_text_without_the_stop_word(
    cuts: list[int], keeps_stop_word: bool
) -> None:
    options: dict[str, Any] = {"stops": ("three",), "keeps_stop_word": keeps_stop_word}
    streamed = respond(cuts, is_streaming=True, **options)
    (whole,) = respond(cuts, is_streaming=False, **options)
    assert text(streamed) == text([whole]) == (TEXT if keeps_stop_word else "one two ")
    counts = [int(each["num_output_tokens"][0]) for each in streamed]
    assert sum(counts) == int(whole["num_output_tokens"][0]) == len(TEXT)


def test_prompt_precedes_the_text() -> None:
    assert text(respond([], is_streaming=False, prompt="p: ")) == "p: " + TEXT


def test_special_tokens_of_the_prompt_are_in_the_response_as_text() -> None:
    """The response contains the prompt as the client sent it, not as it is decoded."""
    (response,) = respond([], is_streaming=False, prompt="<s>p")
    assert text([response]) == "<s>p" + TEXT


@pytest.mark.parametrize(("start", "left"), [("one t", ["t"]), ("one", []), ("", [])])
def test_stream_that_ends_early_contains_the_text_that_was_held_back(
    start: str, left: list[str]
) -> None:
    outputs = Outputs(finish_reason=True, num_output_tokens=True)
    request = TextRequest(FIELDS, stops=("three",), outputs=outputs)
    builder = TextResponseBuilder(request, decode, is_streaming=True)
    for letter in start:
        builder.add(SequenceUpdate(0, token_ids=(ord(letter),)))
    responses = builder.end_early()
    assert [text([each]) for each in responses] == left
    assert all(each["finish_reason"][0] == b"abort" for each in responses)
    assert [int(each["num_output_tokens"][0]) for each in responses] == [1 for _ in left]
    assert builder.is_done and not builder.end_early()


def test_sequences_that_end_early_keep_their_order() -> None:
    request = TextRequest({**FIELDS, "num_return_sequences": 2}, stops=("three",))
    builder = TextResponseBuilder(request, decode, is_streaming=True)
    builder.add(SequenceUpdate(0, 0, token_ids=(ord("t"),), finish_reason="length"))
    builder.add(SequenceUpdate(0, 1, token_ids=tuple(map(ord, "th"))))
    (response,) = builder.end_early()
    assert response["text_output"].tolist() == [b"", b"th"]
