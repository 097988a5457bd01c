"""Text of the llmapi layout, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engine import PerfMetrics, SequenceUpdate
from trtllm_serve_cli.runtime.requests.llmapi_response import (
    TextAnswer,
    TextRequest,
    cut_stop,
    num_held_back,
)


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def answer(*, streaming: bool = False, number: int = 1, **request: Any) -> TextAnswer:
    fields = {"input_ids": (ord("?"),), "num_return_sequences": number}
    wanted = TextRequest(**{"fields": fields, "exclude_input": True, **request})
    return TextAnswer(wanted, decode, 7, is_streaming=streaming)


def updates(text: str, reason: Any = "length") -> list[SequenceUpdate]:
    """One token per character."""
    last = len(text) - 1
    return [
        SequenceUpdate(1, 0, (ord(each),), reason if index == last else None)
        for index, each in enumerate(text)
    ]


def told(taker: TextAnswer, changes: list[SequenceUpdate]) -> list[dict[str, Any]]:
    answers = [taker.take(each) for each in changes]
    return [{name: value.tolist() for name, value in each.items()} for each in answers if each]


def test_whole_text_comes_once() -> None:
    assert told(answer(), updates("abc")) == [{"text_output": [b"abc"]}]


def test_prompt_comes_first_unless_it_is_left_out() -> None:
    assert told(answer(exclude_input=False), updates("abc")) == [{"text_output": [b"?abc"]}]


def test_pieces_come_as_they_are_made_and_never_the_prompt() -> None:
    pieces = told(answer(streaming=True, exclude_input=False), updates("abc"))
    assert pieces == [{"text_output": [each]} for each in (b"a", b"b", b"c")]


def test_stop_word_is_cut_off_and_named() -> None:
    wanted: dict[str, Any] = {
        "stops": ("bc", "c", "z"), "tells_finish_reason": True, "tells_stop_reason": True,
    }  # fmt: skip
    assert told(answer(**wanted), updates("abc", "stop")) == [
        {"text_output": [b"a"], "finish_reason": [b"stop"], "stop_reason": [b"bc"]}
    ]
    assert told(answer(**wanted, exclude_input=False), updates("abc", "stop")) == [
        {"text_output": [b"?a"], "finish_reason": [b"stop"], "stop_reason": [b"bc"]}
    ]


def test_what_may_become_a_stop_word_waits() -> None:
    pieces = told(answer(streaming=True, stops=("bcd",)), updates("abcabcd", "stop"))
    assert [piece["text_output"] for piece in pieces] == [[b"a"], [b"bca"], [b""]]


def test_answer_that_ran_out_keeps_the_word_it_ends_with() -> None:
    wanted: dict[str, Any] = {"stops": ("bc",), "tells_stop_reason": True}
    assert told(answer(**wanted), updates("ab")) == [
        {"text_output": [b"ab"], "stop_reason": [b"None"]}
    ]


def test_piece_whose_reason_is_to_come_says_none_as_upstream_does() -> None:
    pieces = told(answer(streaming=True, tells_finish_reason=True), updates("ab"))
    assert [piece["finish_reason"] for piece in pieces] == [[b"None"], [b"length"]]


def test_likeliest_of_several_is_told() -> None:
    changes = [
        SequenceUpdate(1, 0, (ord("a"),), "length", cum_log_prob=-2.0),
        SequenceUpdate(1, 1, (ord("b"),), "length", cum_log_prob=-1.0),
    ]
    assert told(answer(number=2, tells_log_prob=True), changes) == [
        {"text_output": [b"b"], "cumulative_logprob": [-1.0]}
    ]


def test_performance_figures_have_the_layouts_names() -> None:
    fields = {"input_ids": (1,), "num_return_sequences": 1, "return_perf_metrics": True}
    perf = PerfMetrics(4, 3, 1, 10, 20, 30)
    (only,) = told(answer(fields=fields), [SequenceUpdate(1, 0, (65,), "length", perf=perf)])
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


def test_what_has_come_is_told_when_the_caller_ends_it() -> None:
    taker = answer(tells_finish_reason=True)
    taker.take(updates("ab")[0])
    (cut,) = taker.cut()
    assert {name: value.tolist() for name, value in cut.items()} == {
        "text_output": [b"a"],
        "finish_reason": [b"cancelled"],
    }
    assert taker.is_done


@given(
    st.text("abc", min_size=1, max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_pieces_add_up_to_the_whole(text: str, stops: list[str]) -> None:
    wanted: dict[str, Any] = {"stops": tuple(stops)}
    for reason in ("stop", "length"):
        (whole,) = told(answer(**wanted), updates(text, reason))
        pieces = told(answer(streaming=True, **wanted), updates(text, reason))
        assert b"".join(piece["text_output"][0] for piece in pieces) == whole["text_output"][0]


@pytest.mark.parametrize(
    ("text", "kept"), [("abc", ("ab", "c")), ("ab", ("ab", None)), ("c", ("", "c"))]
)
def test_stop_word_at_the_end_is_cut(text: str, kept: tuple[str, str | None]) -> None:
    assert cut_stop(text, ("c", "x")) == kept


@pytest.mark.parametrize(("text", "number"), [("a", 0), ("ab", 1), ("abc", 2), ("abcx", 0)])
def test_start_of_a_stop_word_is_held_back(text: str, number: int) -> None:
    assert num_held_back(text, ("bcd",)) == number
