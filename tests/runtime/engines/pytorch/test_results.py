"""Test the conversion of LLM API results to updates, and the end of sequences."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import GenerationRequest, PromptFacts, SequenceUpdate
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


def entry(*tokens: int) -> dict[int, SimpleNamespace]:
    """Return log probabilities, in which the last token is the most likely one."""
    return {each: SimpleNamespace(logprob=-1.0 / rank) for rank, each in enumerate(tokens, 1)}


def test_alternatives_start_with_the_most_likely_token() -> None:
    reader = ResultReader(request(num_top_log_probs=2))
    (update,) = reader.read(result(7, logprobs=[entry(7, 8, 9)]))
    assert update.top_log_probs == (((9, -1 / 3), (8, -0.5)),)


def test_log_probabilities_are_finite() -> None:
    excluded = {7: SimpleNamespace(logprob=0.0), 8: SimpleNamespace(logprob=-math.inf)}
    overflowed = {7: SimpleNamespace(logprob=math.nan)}
    reader = ResultReader(request(return_log_probs=True, num_top_log_probs=2))
    (update,) = reader.read(result(7, 7, logprobs=[excluded, overflowed]))
    assert update.log_probs == (0.0, -9999.0)
    assert update.cum_log_prob == -9999.0
    assert update.top_log_probs == (((7, 0.0), (8, -9999.0)), ((7, -9999.0),))


def test_a_missing_log_probability_fails_the_request() -> None:
    reader = ResultReader(request(return_log_probs=True))
    with pytest.raises(ValueError, match="log probability of token 7"):
        reader.read(result(7, logprobs=[entry(8)]))


@pytest.mark.parametrize(
    "entries",
    [
        [entry(2), entry(3)],
        [None, entry(2), entry(3)],
        [entry(2), entry(3), entry(7)],
        [None, entry(2), entry(3), entry(7)],
    ],
)
def test_first_update_has_the_log_probabilities_of_the_prompt(entries: list[Any]) -> None:
    fields = {"input_ids": (1, 2, 3), "return_prompt_log_probs": True, "num_top_log_probs": 1}
    reader = ResultReader(request(**fields))
    outputs: dict[str, Any] = {"logprobs": [entry(7)], "prompt_logprobs": entries}
    (first,) = reader.read(result(7, **outputs))
    assert first.prompt == PromptFacts(None, (-1.0, -1.0), (((2, -1.0),), ((3, -1.0),)))
    (second,) = reader.read(result(7, 8, logprobs=[entry(7), entry(8)]))
    assert second.prompt is None


def test_log_probabilities_of_a_part_of_the_prompt_fail_the_request() -> None:
    reader = ResultReader(request(input_ids=(1, 2, 3), return_prompt_log_probs=True))
    with pytest.raises(ValueError, match="for 1 of 2 prompt tokens"):
        reader.read(result(7, prompt_logprobs=[entry(3)]))


def test_first_update_counts_cached_tokens() -> None:
    counted = result(7)
    counted.cached_tokens = 32
    (update,) = ResultReader(request()).read(counted)
    assert update.prompt == PromptFacts(32)


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_an_unexpected_end_is_an_error(reason: str) -> None:
    assert ResultReader(request()).read(result(finish_reason=reason)) == [
        SequenceUpdate(1, error=f"the engine ended the request ({reason}); retry the request")
    ]
