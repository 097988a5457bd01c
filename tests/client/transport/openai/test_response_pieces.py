from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.client.generate import Piece, summarize_pieces
from trtllm_serve_cli.client.transport.openai.response_pieces import PieceParser


def _delta(index: int = 0, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


def _parse(*parts: dict[str, Any]) -> list[Piece]:
    parser = PieceParser()
    return [piece for part in parts for piece in parser.parse(part, 1.0)] + parser.finish(2.0)


def test_the_part_with_only_the_role_is_not_a_piece() -> None:
    pieces = _parse(
        _delta(role="assistant", content=""),
        _delta(content="a"),
        _delta(finish_reason="stop"),
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}},
    )
    assert pieces == [
        Piece("a", 1.0),
        Piece("", 1.0, finish_reason="stop"),
        Piece("", 2.0, num_input_tokens=4, num_output_tokens=1),
    ]


def test_an_empty_sequence_is_one_piece() -> None:
    parts = [_delta(index, "stop", role="assistant", content="") for index in (0, 1)]
    assert summarize_pieces(_parse(*parts), 0.0, 2.0).texts == ("", "")


def test_cumulative_counts_are_not_added() -> None:
    usages = [{"prompt_tokens": 4, "completion_tokens": count} for count in (1, 2)]
    pieces = _parse(*(_delta(content="a") | {"usage": usage} for usage in usages))
    assert summarize_pieces(pieces, 0.0, 2.0).num_output_tokens == 2


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_precedes_the_content_in_tags(key: str) -> None:
    parts = [
        _delta(**{key: "hm"}),
        _delta(**{key: "m"}),
        _delta(content="Yes"),
        _delta(content="!"),
    ]
    text = "".join(piece.text for piece in _parse(*parts))
    assert text == "<think>\nhmm\n</think>\n\nYes!"


def test_log_probabilities_of_both_apis() -> None:
    chat = {"choices": [{"message": {"content": "ab"}, "logprobs": {"content": [
        {"logprob": -1.0}, {"logprob": -2.0}]}}]}  # fmt: skip
    text = {"choices": [{"text": "ab", "logprobs": {"token_logprobs": [None, -1.0, -2.0]}}]}
    for body in (chat, text):
        (piece,) = _parse(body)
        assert (piece.text, piece.output_log_probs, piece.cum_log_prob) == (
            "ab",
            (-1.0, -2.0),
            -3.0,
        )


def test_sequences_finish_separately() -> None:
    parser = PieceParser()
    assert not parser.is_finished
    parser.parse(_delta(0, "stop", content="a"), 1.0)
    parser.parse(_delta(1, content="b"), 1.0)
    assert not parser.is_finished
    parser.parse(_delta(1, "length"), 1.0)
    assert parser.is_finished


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [3]},
        {"choices": [{"delta": 3}]},
        {"choices": 3},
        {"choices": [{"index": float("inf")}]},
    ],
)
def test_refuses_invalid_parts(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        _parse(body)
