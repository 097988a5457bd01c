"""Serialization of requests and updates, and checks of requests."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import (
    OPTIONAL_FIELDS,
    GenerationRequest,
    PerfMetrics,
    PromptFacts,
    SequenceUpdate,
    last_line,
    merge_updates,
)

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
    min_p=st.none() | st.floats(0.01, 1),
    logit_bias=st.lists(st.tuples(st.integers(0), _FLOATS), max_size=3).map(tuple),
    num_top_log_probs=st.integers(0, 20),
    return_prompt_log_probs=st.booleans(),
)
_TOP = st.lists(
    st.lists(st.tuples(st.integers(0), _FLOATS), max_size=3).map(tuple), max_size=4
).map(tuple)
_PROMPTS = st.builds(
    PromptFacts,
    num_cached_tokens=st.none() | st.integers(0),
    log_probs=st.lists(_FLOATS, max_size=5).map(tuple),
    top_log_probs=_TOP,
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
    top_log_probs=_TOP,
    prompt=st.none() | _PROMPTS,
    embedding=st.text(),
)


@given(_REQUESTS)
def test_request_survives_serialization(request: GenerationRequest) -> None:
    message = json.loads(json.dumps(request.to_message()))
    assert GenerationRequest.from_message(message) == request


def test_message_has_every_field_of_the_request() -> None:
    request = GenerationRequest(
        id=1,
        input_ids=(1,),
        max_new_tokens=1,
        min_p=0.5,
        logit_bias=((1, 2.0),),
        num_top_log_probs=1,
        return_prompt_log_probs=True,
        trace_parent="00-1-2-01",
    )
    assert list(request.to_message()) == [each.name for each in fields(GenerationRequest)]


def test_message_omits_unset_fields_that_old_workers_reject() -> None:
    message = GenerationRequest(id=1, input_ids=(1,), max_new_tokens=1).to_message()
    assert not message.keys() & set(OPTIONAL_FIELDS)


@given(_UPDATES)
def test_update_survives_serialization(update: SequenceUpdate) -> None:
    assert SequenceUpdate.from_wire(json.loads(json.dumps(update.to_wire()))) == update


@given(_UPDATES)
def test_update_of_an_old_worker_is_shorter(update: SequenceUpdate) -> None:
    entry = json.loads(json.dumps(update.to_wire()))
    has_more = update.top_log_probs or update.prompt is not None or update.embedding
    assert (len(entry) == 9) == (not has_more)
    old = replace(update, top_log_probs=(), prompt=None, embedding="")
    assert SequenceUpdate.from_wire(entry[:9]) == old


@pytest.mark.parametrize(
    ("message", "line"),
    [("why", "why"), ("Check 'a' failed at b.cpp:1:\n  why\n\n", "why"), ("", "RuntimeError")],
)
def test_last_line_of_an_error(message: str, line: str) -> None:
    assert last_line(RuntimeError(message)) == line


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
            top_log_probs=_TOP,
        ),
        max_size=20,
    )
)
def test_merging_keeps_tokens_in_order(
    updates: list[SequenceUpdate],
) -> None:
    merged = merge_updates(updates)
    assert len({(each.request_id, each.sequence_index) for each in merged}) == len(merged)
    for what in ("token_ids", "log_probs", "top_log_probs"):
        assert _collect(merged, what) == _collect(updates, what)


def test_merging_keeps_the_end_the_latest_metrics_and_the_error() -> None:
    perf = PerfMetrics(first_token_time_ns=5)
    prompt = PromptFacts(3, (-0.25,))
    merged = merge_updates(
        [
            SequenceUpdate(1, 0, (1,), None, (-0.5,), -0.5, perf=perf, prompt=prompt),
            SequenceUpdate(2, 0, (7,)),
            SequenceUpdate(1, 0, (2,), "length", (-1.0,), -1.5),
            SequenceUpdate(2, error="broken"),
        ]
    )
    assert merged == [
        SequenceUpdate(1, 0, (1, 2), "length", (-0.5, -1.0), -1.5, perf=perf, prompt=prompt),
        SequenceUpdate(2, 0, (7,)),
        SequenceUpdate(2, error="broken"),
    ]
