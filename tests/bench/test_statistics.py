from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.records import INTERRUPTED, RequestError, RequestRecord
from trtllm_serve_cli.bench.statistics import distribute, itl_s, summarize, tpot_s

# Due at 0, sent 1 s late, tokens at 2, 3 and 5 s, done at 6.
RECORD = RequestRecord(0, 0.0, 1.0, 6.0, 10, (2.0, 3.0, 5.0), (1, 1, 1))
LATER = RequestRecord(1, 2.0, 2.0, 8.0, 20, (4.0,), (2,))
FAILED = replace(LATER, index=2, end_s=10.0, error=RequestError("unavailable", "gone"))
STOPPED = replace(LATER, index=3, error=RequestError(INTERRUPTED))

samples = st.lists(st.floats(0, 1e4), min_size=1, max_size=300)


@given(samples)
def test_percentiles_are_upstreams(sample: list[float]) -> None:
    times = distribute(sample)
    assert times is not None
    for percent, value_ms in (
        (50, times.p50_ms),
        (90, times.p90_ms),
        (95, times.p95_ms),
        (99, times.p99_ms),
    ):
        rank = max(math.ceil(len(sample) * percent / 100), 1)
        assert value_ms == pytest.approx(sorted(sample)[rank - 1] * 1e3)


@given(samples)
def test_distribution_agrees_with_simple_definitions(sample: list[float]) -> None:
    times = distribute(sample)
    assert times is not None
    assert times.num_samples == len(sample)
    assert times.mean_ms == pytest.approx(math.fsum(sample) / len(sample) * 1e3)
    assert (times.min_ms, times.max_ms) == pytest.approx((min(sample) * 1e3, max(sample) * 1e3))


def test_distribution_of_nothing_is_nothing() -> None:
    assert distribute([]) is None


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=50).map(sorted))
def test_tpot_is_the_mean_gap_of_one_token_responses(times_s: list[float]) -> None:
    record = replace(RECORD, chunk_s=tuple(times_s), chunk_tokens=(1,) * len(times_s))
    gaps = itl_s(record)
    assert tpot_s(record) == pytest.approx(math.fsum(gaps) / len(gaps))


def test_tpot_needs_two_tokens() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        tpot_s(replace(RECORD, chunk_s=(1.0,), chunk_tokens=(1,)))


def test_latencies_count_from_due_and_from_sent() -> None:
    summary = summarize([RECORD], AllAtOnce(), streamed=True)
    means = [
        times and times.mean_ms
        for times in (
            summary.request_latency,
            summary.request_latency_from_sent,
            summary.ttft,
            summary.ttft_from_sent,
            summary.itl,
            summary.tpot,
            summary.schedule_lag,
        )
    ]
    assert means == [6000, 5000, 2000, 1000, 1500, 1500, 1000]


def test_token_times_exist_only_when_streamed() -> None:
    summary = summarize([RECORD], AllAtOnce(), streamed=False)
    assert (summary.ttft, summary.itl, summary.tpot) == (None, None, None)


def test_throughput_counts_completed_requests_over_the_whole_span() -> None:
    summary = summarize([RECORD, LATER, FAILED], AllAtOnce(), streamed=True)
    assert summary.duration_s == 10
    assert summary.completed_requests_per_s == 0.2
    assert summary.output_tokens_per_s == 0.5
    assert summary.num_input_tokens == 30
    assert summary.mean_in_flight == pytest.approx((5 + 6 + 8) / 10)


def test_requests_are_counted_by_how_they_ended() -> None:
    summary = summarize([RECORD, FAILED, FAILED, STOPPED], AllAtOnce(), streamed=True)
    counts = (summary.num_requests, summary.num_completed, summary.num_interrupted)
    assert counts == (4, 1, 1)
    assert (summary.num_failed, summary.failures) == (2, {"unavailable": 2})


@pytest.mark.parametrize(
    ("load", "rates"),
    [(AtRate(1), (0.5, 1.0)), (AllAtOnce(), (None, None)), (AtConcurrency(1), (None, None))],
    ids=["rate", "all at once", "concurrency"],
)
def test_only_a_run_at_a_rate_has_offered_and_achieved_rates(
    load: Load, rates: tuple[float | None, float | None]
) -> None:
    summary = summarize([RECORD, LATER], load, streamed=True)
    assert (summary.offered_requests_per_s, summary.achieved_requests_per_s) == rates


def test_summary_of_no_records_has_no_figures() -> None:
    summary = summarize([], AtRate(1), streamed=True)
    assert (summary.num_requests, summary.completed_requests_per_s, summary.ttft) == (0, 0, None)
