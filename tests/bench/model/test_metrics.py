"""Test the metrics and their formulas."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.metrics import (
    GOODPUT,
    ITL,
    RATES,
    TIMES,
    TTFT,
    Completed,
    itl_s,
    tpot_s,
)
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord

RECORD = RequestRecord(0, 0.0, 1.0, 6.0, 10, (2.0, 3.0, 5.0), (1, 1, 1), held_s=0.5, queue_s=0.25)
FAILED = RequestRecord(1, 0.0, 3.0, 4.0, 10, error=RequestError("server"))


def test_json_keys_and_option_names_are_stable() -> None:
    assert {time.key: (time.name, time.needs) for time in TIMES} == {
        "request_latency": ("latency", None),
        "request_latency_from_sent": ("", None),
        "ttft": ("ttft", "--stream"),
        "ttft_from_sent": ("", "--stream"),
        "itl": ("itl", "--stream"),
        "tpot": ("tpot", "--stream"),
        "queue_time": ("queue", "--server-times"),
        "schedule_lag": ("", None),
    }
    assert {rate.key: rate.name for rate in RATES} == {
        "completed_requests_per_s": "requests_per_s",
        "input_tokens_per_s": "",
        "output_tokens_per_s": "output_tokens_per_s",
        "output_tokens_per_s_per_user": "",
        "goodput_requests_per_s": "goodput",
    }


@pytest.mark.parametrize("field", ["key", "name", "label", "title"])
def test_metric_names_are_unique(field: str) -> None:
    names = Counter(getattr(metric, field) for metric in (*TIMES, *RATES))
    del names[""]
    assert set(names.values()) == {1}


def test_compared_metrics_have_names() -> None:
    assert all(time.name for time in TIMES if time.compared or time.is_main)


def test_times_are_read_from_a_record() -> None:
    assert {time.key: time.read(RECORD) for time in TIMES} == {
        "request_latency": [6.0],
        "request_latency_from_sent": [5.0],
        "ttft": [2.0],
        "ttft_from_sent": [1.0],
        "itl": [1.0, 2.0],
        "tpot": [1.5],
        "queue_time": [0.25],
        "schedule_lag": [0.5],
    }


def test_rates_are_computed_from_completed_requests() -> None:
    run = Completed([RECORD, RECORD], 4.0, is_streamed=True, is_good=lambda record: True)
    assert {rate.key: rate.read(run) for rate in RATES} == {
        "completed_requests_per_s": 0.5,
        "input_tokens_per_s": 5.0,
        "output_tokens_per_s": 1.5,
        "output_tokens_per_s_per_user": pytest.approx(1 / 1.5),
        "goodput_requests_per_s": 0.5,
    }


def test_goodput_needs_objectives() -> None:
    assert GOODPUT.read(Completed([RECORD], 4.0, is_streamed=True)) is None


def test_only_schedule_lag_includes_failed_requests() -> None:
    num_requests = {len(time.sample_s([RECORD, FAILED], streamed=True)) for time in TIMES[:-1]}
    assert (num_requests, TIMES[-1].sample_s([FAILED], streamed=True)) == ({1}, [[3.0]])


def test_token_times_require_streaming() -> None:
    measured = [time.key for time in TIMES if time.sample_s([RECORD], streamed=False)]
    assert measured == [
        "request_latency",
        "request_latency_from_sent",
        "queue_time",
        "schedule_lag",
    ]


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=50).map(sorted))
def test_tpot_is_the_mean_gap_of_one_token_responses(times_s: list[float]) -> None:
    record = replace(RECORD, chunk_s=tuple(times_s), chunk_tokens=(1,) * len(times_s))
    gaps = itl_s(record)
    assert tpot_s(record) == pytest.approx([math.fsum(gaps) / len(gaps)])


def test_single_token_has_ttft_but_no_gap() -> None:
    single = replace(RECORD, chunk_s=(2.0,), chunk_tokens=(1,))
    assert (TTFT.read(single), ITL.read(single), tpot_s(single)) == ([2.0], [], [])
