"""Test the conversion of LLM API results to updates, and the end of sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import GenerationRequest, SequenceUpdate
from trtllm_serve_cli.runtime.engines.pytorch.results import ResultReader
from trtllm_serve_cli.runtime.engines.sequence_end import find_end


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"id": 1, "input_ids": (1,), "max_new_tokens": 5, **fields})


def result(*token_ids: int, finished: bool = False, **output: Any) -> SimpleNamespace:
    fields = {"finish_reason": None, "logprobs": [-0.25] * len(token_ids), **output}
    return SimpleNamespace(
        outputs=[SimpleNamespace(token_ids=list(token_ids), **fields)], finished=finished
    )


@pytest.mark.parametrize(
    ("tokens", "start", "fields", "expected"),
    [
        ([1, 2], 0, {}, (2, None)),
        ([1, 2], 2, {}, (2, None)),
        ([1, 2, 3, 4, 5, 6], 0, {}, (5, "length")),
        ([1, 2, 3], 1, {"end_id": 2}, (1, "stop")),
        ([1, 2, 3], 0, {"stop_words": ((1, 2),)}, (2, "stop")),
        ([1, 2, 3], 1, {"stop_words": ((1, 2),)}, (2, "stop")),
        ([2, 3], 0, {"stop_words": ((1, 2),)}, (2, None)),
        ([1, 2, 3, 4, 5], 0, {"end_id": 5}, (4, "stop")),
    ],
)
def test_find_end(
    tokens: list[int], start: int, fields: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    assert find_end(tokens, start, request(**fields)) == expected


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(1, 12), max_size=5),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
)
def test_partial_reads_add_up_to_the_whole(
    tokens: list[int], cuts: list[int], words: tuple[tuple[int, ...], ...]
) -> None:
    whole_request = request(end_id=0, stop_words=words, max_new_tokens=9)
    at_once = ResultReader(whole_request).read(result(*tokens, finished=True))
    reader = ResultReader(whole_request)
    pieces = []
    for cut in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        pieces += reader.read(result(*tokens[:cut], finished=cut == len(tokens)))
    assert [token for each in pieces for token in each.token_ids] == list(at_once[0].token_ids)
    assert [each.finish_reason for each in pieces if each.finish_reason] == [
        at_once[0].finish_reason
    ]


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "length"), ("stop", "stop"), (None, "stop")]
)
def test_the_finish_reason_is_the_executors(finish_reason: str | None, reason: str) -> None:
    updates = ResultReader(request()).read(result(7, finished=True, finish_reason=finish_reason))
    assert updates == [SequenceUpdate(1, 0, (7,), reason)]


def test_no_new_tokens_give_no_update() -> None:
    reader = ResultReader(request())
    assert len(reader.read(result(7))) == 1
    assert reader.read(result(7)) == []


def test_log_probabilities_may_be_plain_numbers() -> None:
    (update,) = ResultReader(request(return_log_probs=True)).read(result(7, 8))
    assert (update.log_probs, update.cum_log_prob) == ((-0.25, -0.25), -0.5)


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_an_unexpected_end_is_an_error(reason: str) -> None:
    assert ResultReader(request()).read(result(finish_reason=reason)) == [
        SequenceUpdate(1, error=f"the engine ended the request: {reason}")
    ]
