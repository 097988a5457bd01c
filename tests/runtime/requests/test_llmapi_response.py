"""Text of the llmapi layout, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import PerfMetrics, SequenceUpdate
from trtllm_serve_cli.runtime.requests.llmapi_response import (
    TextRequest,
    TextResponseBuilder,
    cut_stop,
    num_held_back,
)


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def new_builder(*, streaming: bool = False, number: int = 1, **request: Any) -> TextResponseBuilder:
    fields = {"input_ids": (ord("?"),), "num_return_sequences": number}
    text_request = TextRequest(**{"fields": fields, "exclude_input": True, **request})
    return TextResponseBuilder(text_request, decode, 7, is_streaming=streaming)


def updates(text: str, reason: Any = "length") -> list[SequenceUpdate]:
    """Return one update per character."""
    last = len(text) - 1
    return [
        SequenceUpdate(1, 0, (ord(each),), reason if index == last else None)
        for index, each in enumerate(text)
    ]


def collect(builder: TextResponseBuilder, changes: list[SequenceUpdate]) -> list[dict[str, Any]]:
    answers = [builder.add(each) for each in changes]
    return [{name: value.tolist() for name, value in each.items()} for each in answers if each]


def test_returns_the_whole_text_once() -> None:
    assert collect(new_builder(), updates("abc")) == [{"text_output": [b"abc"]}]


def test_prompt_precedes_the_text_unless_excluded() -> None:
    assert collect(new_builder(exclude_input=False), updates("abc")) == [{"text_output": [b"?abc"]}]


def test_streams_pieces_without_the_prompt() -> None:
    pieces = collect(new_builder(streaming=True, exclude_input=False), updates("abc"))
    assert pieces == [{"text_output": [each]} for each in (b"a", b"b", b"c")]


def test_removes_and_returns_the_stop_word() -> None:
    options: dict[str, Any] = {
        "stops": ("bc", "c", "z"), "returns_finish_reason": True, "returns_stop_reason": True,
    }  # fmt: skip
    assert collect(new_builder(**options), updates("abc", "stop")) == [
        {"text_output": [b"a"], "finish_reason": [b"stop"], "stop_reason": [b"bc"]}
    ]
    assert collect(new_builder(**options, exclude_input=False), updates("abc", "stop")) == [
        {"text_output": [b"?a"], "finish_reason": [b"stop"], "stop_reason": [b"bc"]}
    ]


def test_holds_back_a_possible_stop_word() -> None:
    pieces = collect(new_builder(streaming=True, stops=("bcd",)), updates("abcabcd", "stop"))
    assert [piece["text_output"] for piece in pieces] == [[b"a"], [b"bca"], [b""]]


def test_text_cut_at_the_limit_keeps_a_trailing_stop_word() -> None:
    options: dict[str, Any] = {"stops": ("bc",), "returns_stop_reason": True}
    assert collect(new_builder(**options), updates("ab")) == [
        {"text_output": [b"ab"], "stop_reason": [b"None"]}
    ]


def test_finish_reason_is_none_until_the_end() -> None:
    pieces = collect(new_builder(streaming=True, returns_finish_reason=True), updates("ab"))
    assert [piece["finish_reason"] for piece in pieces] == [[b"None"], [b"length"]]


def test_returns_the_most_likely_sequence() -> None:
    changes = [
        SequenceUpdate(1, 0, (ord("a"),), "length", cum_log_prob=-2.0),
        SequenceUpdate(1, 1, (ord("b"),), "length", cum_log_prob=-1.0),
    ]
    assert collect(new_builder(number=2, returns_log_prob=True), changes) == [
        {"text_output": [b"b"], "cumulative_logprob": [-1.0]}
    ]


def test_performance_metrics_have_the_layouts_names() -> None:
    fields = {"input_ids": (1,), "num_return_sequences": 1, "return_perf_metrics": True}
    perf = PerfMetrics(4, 3, 1, 10, 20, 30)
    (only,) = collect(
        new_builder(fields=fields), [SequenceUpdate(1, 0, (65,), "length", perf=perf)]
    )
    assert only == {
        "text_output": [b"A"],
        "kv_cache_alloc_total_blocks": [4],
        "kv_cache_alloc_new_blocks": [3],
        "kv_cache_missed_block": [3],
        "kv_cache_reused_block": [1],
        "kv_cache_hit_rate": [0.25],
        "arrival_time_ns": [7],
        "first_scheduled_time_ns": [10],
        "first_token_time_ns": [20],
        "last_token_time_ns": [30],
        "acceptance_rate": [0.0],
        "total_accepted_draft_tokens": [0],
        "total_draft_tokens": [0],
    }


def test_returns_the_text_so_far_when_ended_early() -> None:
    builder = new_builder(returns_finish_reason=True)
    builder.add(updates("ab")[0])
    (cut,) = builder.end_early()
    assert {name: value.tolist() for name, value in cut.items()} == {
        "text_output": [b"a"],
        "finish_reason": [b"cancelled"],
    }
    assert builder.is_done


@pytest.mark.parametrize(
    ("text", "pieces"), [("abc", [(b"bc", b"cancelled")]), ("ad", []), ("", [])]
)
def test_stream_that_ends_early_contains_the_text_that_was_held_back(
    text: str, pieces: list[tuple[bytes, bytes]]
) -> None:
    builder = new_builder(streaming=True, stops=("bcd",), returns_finish_reason=True)
    for update in updates(text, None):
        builder.add(update)
    left = builder.end_early()
    assert [(each["text_output"][0], each["finish_reason"][0]) for each in left] == pieces
    assert builder.is_done and not builder.end_early()


@given(
    st.text("abc", min_size=1, max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_pieces_concatenate_to_the_whole_text(text: str, stops: list[str]) -> None:
    options: dict[str, Any] = {"stops": tuple(stops)}
    for reason in ("stop", "length"):
        (whole,) = collect(new_builder(**options), updates(text, reason))
        pieces = collect(new_builder(streaming=True, **options), updates(text, reason))
        assert b"".join(piece["text_output"][0] for piece in pieces) == whole["text_output"][0]


@pytest.mark.parametrize(
    ("text", "kept"), [("abc", ("ab", "c")), ("ab", ("ab", None)), ("c", ("", "c"))]
)
def test_cuts_a_trailing_stop_word(text: str, kept: tuple[str, str | None]) -> None:
    assert cut_stop(text, ("c", "x")) == kept


@pytest.mark.parametrize(("text", "number"), [("a", 0), ("ab", 1), ("abc", 2), ("abcx", 0)])
def test_holds_back_the_start_of_a_stop_word(text: str, number: int) -> None:
    assert num_held_back(text, ("bcd",)) == number
