"""Serialization of requests and updates, and checks of requests."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import (
    EngineLimits,
    GenerationRequest,
    InvalidRequest,
    PerfMetrics,
    SequenceUpdate,
    check_request,
    fit_to_vocabulary,
    last_line,
    merge_updates,
)

LIMITS = EngineLimits(max_seq_len=10, max_beam_width=3, vocab_size=100)
_TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
_FLOATS = st.floats(allow_nan=False)
_REQUESTS = st.builds(
    GenerationRequest,
    id=st.integers(0),
    input_ids=_TOKENS,
    max_new_tokens=st.integers(),
    temperature=st.none() | _FLOATS,
    seed=st.none() | st.integers(0, 2**64 - 1),
    early_stopping=st.none() | st.booleans(),
    stop_words=st.lists(_TOKENS, max_size=3).map(tuple),
    bad_words=st.lists(_TOKENS, max_size=3).map(tuple),
    return_log_probs=st.booleans(),
)
_UPDATES = st.builds(
    SequenceUpdate,
    request_id=st.integers(0),
    sequence_index=st.integers(0, 9),
    token_ids=_TOKENS,
    finish_reason=st.sampled_from([None, "stop", "length", "cancelled"]),
    log_probs=st.lists(_FLOATS, max_size=5).map(tuple),
    cum_log_prob=st.none() | _FLOATS,
    error=st.none() | st.text(),
)


@given(_REQUESTS)
def test_request_survives_serialization(request: GenerationRequest) -> None:
    message = json.loads(json.dumps(request.to_message()))
    assert GenerationRequest.from_message(message) == request


def test_message_has_every_field_of_the_request() -> None:
    message = GenerationRequest(id=1, input_ids=(1,), max_new_tokens=1).to_message()
    assert list(message) == [each.name for each in fields(GenerationRequest)]


@given(_UPDATES)
def test_update_survives_serialization(update: SequenceUpdate) -> None:
    assert SequenceUpdate.from_wire(json.loads(json.dumps(update.to_wire()))) == update


def _request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"id": 1, "input_ids": (1, 2), "max_new_tokens": 4, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input_ids": (0, 99)},
        {"input_ids": (100, 2**31 - 1)},
        {"max_new_tokens": 8},
        {"max_new_tokens": 1},
        {"beam_width": 3, "num_return_sequences": 3},
        {"temperature": 0.0, "top_k": 0, "top_p": 0.0},
        {"top_k": 100, "top_p": 1.0},
        {"min_tokens": 4},
        {"stop_words": ((99,), (0, 1)), "bad_words": ((5,),)},
    ],
    ids=str,
)
def test_accepts_a_request_at_the_limits(fields: dict[str, Any]) -> None:
    check_request(_request(**fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"input_ids": ()},
            "input_ids is empty; send a prompt with at least one token",
        ),
        (
            {"input_ids": (-1, 100)},
            "input_ids contains -1, which is not a token id; send ids of 0 or greater",
        ),
        (
            {"stop_words": ((1,), (2, 100))},
            "stop_words_list contains 100, which is not a token id of this model; send ids from "
            "0 to 99",
        ),
        (
            {"bad_words": ((-7,),)},
            "bad_words_list contains -7, which is not a token id of this model; send ids from "
            "0 to 99",
        ),
        (
            {"bad_words": ((1,) * 4000, (2,) * 97)},
            "bad_words_list has 4097 tokens; send at most 4096 tokens",
        ),
        (
            {"max_new_tokens": 0},
            "request_output_len (max_tokens) is 0; request at least 1 token",
        ),
        (
            {"input_ids": (1,) * 10},
            "the prompt has 10 tokens, but the prompt and the response must fit in this model's "
            "context of 10 tokens (max_seq_len); shorten the prompt",
        ),
        (
            {"max_new_tokens": 9},
            "request_output_len (max_tokens) is 9, but only 8 of the 10 tokens in this "
            "model's context (max_seq_len) remain after the prompt; request at most 8",
        ),
        ({"beam_width": 0}, "beam_width is 0; it must be from 1 to 3"),
        ({"beam_width": 4}, "beam_width is 4; it must be from 1 to 3"),
        ({"num_return_sequences": 65}, "num_return_sequences is 65; it must be from 1 to 64"),
        ({"temperature": -0.5}, "temperature is -0.5; it must be from 0 to 10000"),
        ({"temperature": float("nan")}, "temperature is nan; it must be from 0 to 10000"),
        ({"top_k": 2**31 - 1}, "runtime_top_k is 2147483647; it must be from 0 to 100"),
        ({"top_k": 101}, "runtime_top_k is 101; it must be from 0 to 100"),
        ({"top_p": 1.5}, "runtime_top_p is 1.5; it must be from 0 to 1"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 1.84467e+19"),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty is 0; it must be from 0.0001 to 10000",
        ),
        (
            {"presence_penalty": float("inf")},
            "presence_penalty is inf; it must be from -10000 to 10000",
        ),
        ({"frequency_penalty": -2e4}, "frequency_penalty is -20000; it must be from -10000 to 10000"),  # noqa: E501
        (
            {"len_penalty": 2e4},
            "len_penalty (length_penalty) is 20000; it must be from -10000 to 10000",
        ),
        (
            {"guide": "{}"},
            "guided_decoding_guide is set, but guided_decoding_guide_type is missing; set the type "
            "to one of json, json_schema, regex, ebnf_grammar, structural_tag",
        ),
        ({"min_tokens": 5}, "min_tokens is 5; it must be from 0 to 4"),
        (
            {"beam_width": 2, "num_return_sequences": 3},
            "num_return_sequences is 3, but a beam search returns at most one sequence per beam; "
            "request at most 2 (beam_width)",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_error_names_the_tensor_beyond_the_limits(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        check_request(_request(**fields), LIMITS)
    assert str(rejected.value) == why


@pytest.mark.parametrize(
    ("message", "line"),
    [("why", "why"), ("Check 'a' failed at b.cpp:1:\n  why\n\n", "why"), ("", "RuntimeError")],
)
def test_last_line_of_an_error(message: str, line: str) -> None:
    assert last_line(RuntimeError(message)) == line


def test_wraps_ids_beyond_the_vocabulary() -> None:
    wrapped = fit_to_vocabulary(_request(input_ids=(0, 99, 100, 2**31 - 1)), LIMITS)
    assert wrapped == _request(input_ids=(0, 99, 0, 47))


@pytest.mark.parametrize(
    ("end_id", "fitted"), [(0, 0), (99, 99), (-1, None), (100, None), (None, None)]
)
def test_ignores_an_end_id_beyond_the_vocabulary(end_id: int | None, fitted: int | None) -> None:
    assert fit_to_vocabulary(_request(end_id=end_id), LIMITS) == _request(end_id=fitted)


def _collect(updates: list[SequenceUpdate], what: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    """Return all tokens or log probabilities of each sequence in order."""
    collected: dict[tuple[int, int], tuple[Any, ...]] = {}
    for each in updates:
        key = (each.request_id, each.sequence_index)
        collected[key] = collected.get(key, ()) + getattr(each, what)
    return collected


@given(
    st.lists(
        st.builds(
            SequenceUpdate,
            request_id=st.integers(1, 3),
            sequence_index=st.integers(0, 1),
            token_ids=_TOKENS,
            log_probs=st.lists(_FLOATS, max_size=3).map(tuple),
        ),
        max_size=20,
    )
)
def test_merging_keeps_tokens_in_order(
    updates: list[SequenceUpdate],
) -> None:
    merged = merge_updates(updates)
    assert len({(each.request_id, each.sequence_index) for each in merged}) == len(merged)
    for what in ("token_ids", "log_probs"):
        assert _collect(merged, what) == _collect(updates, what)


def test_merging_keeps_the_end_the_latest_metrics_and_the_error() -> None:
    perf = PerfMetrics(first_token_time_ns=5)
    merged = merge_updates(
        [
            SequenceUpdate(1, 0, (1,), None, (-0.5,), -0.5, perf=perf),
            SequenceUpdate(2, 0, (7,)),
            SequenceUpdate(1, 0, (2,), "length", (-1.0,), -1.5),
            SequenceUpdate(2, error="broken"),
        ]
    )
    assert merged == [
        SequenceUpdate(1, 0, (1, 2), "length", (-0.5, -1.0), -1.5, perf=perf),
        SequenceUpdate(2, 0, (7,)),
        SequenceUpdate(2, error="broken"),
    ]
