"""The text of one row of a request from an engine's updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.requests.text_response import RowTextResponseBuilder
from trtllm_serve_cli.runtime.text.step_decoder import StepDecoder
from trtllm_serve_cli.runtime.triton.tensors import RowRequest


def _decode_all(sequences: Sequence[Sequence[int]]) -> list[str]:
    """Decode tokens as bytes, so that a character may consist of several."""
    return [bytes(each).decode(errors="replace") for each in sequences]


def _new_builder(
    *, is_streaming: bool, accumulates: bool = False, **fields: Any
) -> RowTextResponseBuilder:
    fields = {"beam_width": 1, "num_return_sequences": 1, "input_ids": tuple(b"in "), **fields}
    row = RowRequest(fields, 0, 0, False, False, False)
    return RowTextResponseBuilder(
        row, StepDecoder(_decode_all), 0, is_streaming=is_streaming, accumulates=accumulates
    )


def _texts(builder: RowTextResponseBuilder, *updates: SequenceUpdate) -> list[str]:
    responses = [builder.add(each) for each in updates]
    return [text.decode() for each in responses if each for text in each["text_output"]]


def test_pieces_end_at_characters_and_the_last_has_the_rest() -> None:
    updates = [SequenceUpdate(1, 0, (byte,)) for byte in "é".encode()]
    last = SequenceUpdate(1, 0, (0xE2,), "length")
    assert _texts(_new_builder(is_streaming=True), *updates, last) == ["", "é", "\ufffd"]


def test_accumulated_pieces_contain_the_whole_text_so_far() -> None:
    updates = [SequenceUpdate(1, 0, tuple(b"out")), SequenceUpdate(1, 0, tuple(b"put"), "stop")]
    builder = _new_builder(is_streaming=True, accumulates=True)
    assert _texts(builder, *updates) == ["out", "output"]


def test_whole_text_starts_with_the_prompt_unless_excluded() -> None:
    update = SequenceUpdate(1, 0, tuple(b"out"), "stop")
    assert _texts(_new_builder(is_streaming=False), update) == ["in out"]


def test_returns_all_beams_in_one_response() -> None:
    builder = _new_builder(is_streaming=True, beam_width=2, num_return_sequences=2)
    updates = [SequenceUpdate(1, each, tuple(b"ab"[each:]), "stop") for each in (0, 1)]
    assert _texts(builder, *updates) == ["in ab", "in b"]


@pytest.mark.parametrize(("is_streaming", "left"), [(True, []), (False, ["in o"])])
def test_end_early_returns_unsent_text(is_streaming: bool, left: list[str]) -> None:
    builder = _new_builder(is_streaming=is_streaming)
    builder.add(SequenceUpdate(1, 0, tuple(b"o")))
    assert [text.decode() for each in builder.end_early() for text in each["text_output"]] == left


@pytest.mark.parametrize(("accumulates", "left"), [(False, ["\ufffd"]), (True, ["o\ufffd"])])
def test_stream_that_ends_early_contains_an_incomplete_character(
    accumulates: bool, left: list[str]
) -> None:
    builder = _new_builder(is_streaming=True, accumulates=accumulates)
    for byte in (*b"o", 0xE2):
        builder.add(SequenceUpdate(1, 0, (byte,)))
    assert [text.decode() for each in builder.end_early() for text in each["text_output"]] == left
    assert builder.is_done and not builder.end_early()


def test_returns_no_token_ids() -> None:
    responses = _new_builder(is_streaming=True).add(SequenceUpdate(1, 0, (65,)))
    assert responses is not None and set(responses) == {
        "text_output",
        "batch_index",
        "sequence_index",
    }
