from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.model.records import INTERRUPTED, RequestError, RequestRecord
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.stats.statistics import (
    distribute,
    find_steady_state,
    is_good,
    max_in_flight,
    summarize,
)

# Due at 0, sent 1 s late, tokens at 2, 3 and 5 s, ended at 6 s.
RECORD = RequestRecord(0, 0.0, 1.0, 6.0, 10, (2.0, 3.0, 5.0), (1, 1, 1))
LATER = RequestRecord(1, 2.0, 2.0, 8.0, 20, (4.0,), (2,))
FAILED = replace(LATER, index=2, end_s=10.0, error=RequestError("unavailable", "gone"))
STOPPED = replace(LATER, index=3, error=RequestError(INTERRUPTED))

samples = st.lists(st.floats(0, 1e4), min_size=1, max_size=300)


@given(samples)
def test_percentiles_match_upstream(sample: list[float]) -> None:
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


@pytest.mark.parametrize("num_samples", [1000, 2000, 3000])
def test_p999_of_a_round_sample_size_is_not_one_rank_too_high(num_samples: int) -> None:
    times = distribute([value * 1e-3 for value in range(1, num_samples + 1)])
    assert times is not None
    assert times.p999_ms == pytest.approx(num_samples * 999 / 1000)


def test_empty_sample_has_no_distribution() -> None:
    assert distribute([]) is None


def test_latencies_count_from_due_and_from_sent() -> None:
    summary = summarize([RECORD], AllAtOnce(), streamed=True)
    means = {key: times.mean_ms for key, times in summary.times.items() if times}
    assert means == {
        "request_latency": 6000,
        "request_latency_from_sent": 5000,
        "ttft": 2000,
        "ttft_from_sent": 1000,
        "itl": 1500,
        "tpot": 1500,
        "schedule_lag": 1000,
    }


def test_token_times_exist_only_when_streamed() -> None:
    summary = summarize([RECORD], AllAtOnce(), streamed=False)
    measured = [key for key, times in summary.times.items() if times]
    assert measured == ["request_latency", "request_latency_from_sent", "schedule_lag"]


def test_throughput_counts_completed_requests_over_the_whole_span() -> None:
    summary = summarize([RECORD, LATER, FAILED], AllAtOnce(), streamed=True)
    assert summary.duration_s == 10
    assert summary.rates["completed_requests_per_s"] == 0.2
    assert summary.rates["output_tokens_per_s"] == 0.5
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
    ids=["rate", "in one burst", "concurrency"],
)
def test_only_a_run_at_a_rate_has_offered_and_achieved_rates(
    load: Load, rates: tuple[float | None, float | None]
) -> None:
    summary = summarize([RECORD, LATER], load, streamed=True)
    assert (summary.offered_requests_per_s, summary.achieved_requests_per_s) == rates


def test_summary_of_no_records_has_no_figures() -> None:
    summary = summarize([], AtRate(1), streamed=True)
    assert (summary.num_requests, summary.rates["completed_requests_per_s"]) == (0, 0)
    assert not any(summary.times.values())


def _records(latencies_s: list[float], gap_s: float = 1.0) -> list[RequestRecord]:
    return [
        RequestRecord(i, i * gap_s, i * gap_s, i * gap_s + latency, 1, (i * gap_s + latency,), (1,))
        for i, latency in enumerate(latencies_s)
    ]


@given(st.lists(st.floats(0, 1e3), min_size=10, max_size=300), st.booleans())
def test_interval_ends_are_ordered_and_within_the_sample(
    sample: list[float], grouped: bool
) -> None:
    sizes = [len(sample) // 2, len(sample) - len(sample) // 2] if grouped else None
    times = distribute(sample, sizes)
    assert times is not None
    seen = {value * 1e3 for value in sample}
    for low, high in times.intervals_ms.values():
        assert min(seen) - 1e-6 <= low <= high <= max(seen) + 1e-6


def test_intervals_cover_the_true_percentile() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        times = distribute(rng.exponential(1.0, 200))
        assert times is not None
        low, high = times.intervals_ms["p90"]
        covered += low <= math.log(10) * 1e3 <= high
    assert 180 <= covered <= 200


def test_gaps_of_one_response_are_not_independent_samples() -> None:
    rng = np.random.default_rng(0)
    gaps = np.repeat(rng.exponential(1.0, 30), 50)
    alone, grouped = distribute(gaps), distribute(gaps, [50] * 30)
    assert alone is not None
    assert grouped is not None
    width = {
        name: times.intervals_ms["p50"][1] - times.intervals_ms["p50"][0]
        for name, times in (("alone", alone), ("grouped", grouped))
    }
    assert width["grouped"] > 3 * width["alone"]


def test_percentile_without_enough_tail_values_has_no_interval() -> None:
    times = distribute([float(value) for value in range(100)])
    assert times is not None
    assert set(times.intervals_ms) == {"p50", "p75", "p90", "p95"}


def test_gaps_of_one_request_have_no_interval() -> None:
    times = distribute(np.random.default_rng(0).exponential(1.0, 1000), [1000])
    assert times is not None
    assert times.intervals_ms == {}


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    slow = replace(LATER, chunk_s=(4.0, 7.5), chunk_tokens=(1, 1))
    objectives = [parse_objective("ttft:p50<2s"), parse_objective("itl:p60<3s")]
    summary = summarize([RECORD, slow, FAILED], AllAtOnce(), streamed=True, objectives=objectives)
    assert summary.rates["goodput_requests_per_s"] == 1 / 10
    assert [(outcome.measured_ms, outcome.is_met) for outcome in summary.objectives] == [
        (2000, True),
        (3500, False),
    ]


@pytest.mark.parametrize(
    ("objective", "is_met"),
    [("tpot<1us", True), ("itl:p99<1us", True), ("queue<1s", False), ("latency<1us", False)],
)
def test_single_token_meets_gap_objectives_but_not_others(objective: str, is_met: bool) -> None:
    single = replace(RECORD, chunk_s=(2.0,), chunk_tokens=(1,))
    assert is_good(single, [parse_objective(objective)]) == is_met


def test_objective_on_an_unmeasured_time_is_missed() -> None:
    objectives = [parse_objective("queue<1s")]
    summary = summarize([RECORD], AllAtOnce(), streamed=True, objectives=objectives)
    assert summary.rates["goodput_requests_per_s"] == 0
    assert summary.objectives[0].measured_ms is None


@pytest.mark.parametrize(
    ("num_failed", "measured_ms"), [(0, 1000), (49, 1000), (51, None), (100, None)]
)
def test_failed_requests_count_against_objectives(
    num_failed: int, measured_ms: float | None
) -> None:
    failed = RequestError("rejected", "full")
    records = [
        replace(record, error=failed if index < num_failed else None)
        for index, record in enumerate(_records([1.0] * 100))
    ]
    records += [replace(records[0], error=RequestError(INTERRUPTED))] * 200
    objectives = [parse_objective("latency:p50<3s")]
    (outcome,) = summarize(records, AtRate(1), streamed=True, objectives=objectives).objectives
    assert (outcome.measured_ms, outcome.is_met) == (measured_ms, measured_ms is not None)


def test_twenty_minute_latency_is_not_treated_as_a_failure() -> None:
    objectives = [parse_objective("latency:mean<1800s")]
    summary = summarize(_records([1200.0] * 9), AllAtOnce(), streamed=False, objectives=objectives)
    (outcome,) = summary.objectives
    assert (outcome.measured_ms, outcome.is_met) == (1.2e6, True)
    failed = [replace(FAILED, index=index) for index in range(9, 11)]
    records = [*_records([1.0] * 9), *failed]
    summary = summarize(records, AllAtOnce(), streamed=False, objectives=objectives)
    assert summary.objectives[0].measured_ms is None


def test_any_percentile_can_be_an_objective() -> None:
    records = _records([0.01 * index for index in range(1, 101)])
    objectives = [parse_objective("latency:p97.5<1s"), parse_objective("latency:mean<1s")]
    summary = summarize(records, AllAtOnce(), streamed=False, objectives=objectives)
    assert [outcome.measured_ms for outcome in summary.objectives] == pytest.approx([980, 505])


def test_ramp_requests_are_only_counted_as_ramp() -> None:
    summary = summarize([replace(FAILED, is_ramp=True), RECORD], AtRate(1), streamed=True)
    assert (summary.num_requests, summary.num_ramp, summary.num_failed) == (1, 1, 0)


def test_duration_excludes_the_time_between_runs() -> None:
    again = [replace(record, run=1) for record in (RECORD, LATER)]
    summary = summarize([RECORD, LATER, *again], AtRate(1), streamed=True)
    assert (summary.duration_s, summary.rates["completed_requests_per_s"]) == (16, 0.25)
    assert summary.offered_requests_per_s == 0.5
    assert summary.max_in_flight == 2


def test_run_limited_by_its_cap_is_marked() -> None:
    held = replace(RECORD, held_s=0.5)
    summary = summarize([held, LATER], AtRate(1, concurrency=1), streamed=True)
    assert (summary.num_held, summary.is_limited_by_concurrency) == (1, True)
    lag = summary.times["schedule_lag"]
    assert lag is not None
    assert lag.max_ms == 500  # 1 s late, 0.5 s held


def test_back_to_back_requests_are_not_concurrent() -> None:
    assert max_in_flight(_records([1.0] * 5)) == 1
    assert max_in_flight(_records([1.5] * 5)) == 2


def test_steady_state_excludes_a_slow_start() -> None:
    rng = np.random.default_rng(0)
    latencies = [5.0] * 20 + rng.normal(1.0, 0.01, 180).tolist()
    steady = find_steady_state(_records(latencies, 0.1), AtRate(10))
    assert steady is not None
    assert steady.is_reached
    assert 20 <= steady.num_requests_before <= 40
    assert steady.request_latency_p50_ms == pytest.approx(1000, rel=0.01)
    assert steady.completed_requests_per_s == pytest.approx(10, rel=0.15)


def test_increasing_latencies_are_never_steady() -> None:
    steady = find_steady_state(_records([0.1 * index for index in range(200)]), AtRate(10))
    assert steady is not None
    assert not steady.is_reached


@pytest.mark.parametrize("load", [AllAtOnce(), AtRate(1)], ids=["in one burst", "short"])
def test_steady_state_requires_a_sustained_load(load: Load) -> None:
    num_requests = 200 if isinstance(load, AllAtOnce) else 40
    assert find_steady_state(_records([1.0] * num_requests), load) is None


def test_rejections_timeouts_and_cancellations_are_counted_separately() -> None:
    kinds = ("rejected", "timed_out", "timed_out", "cancelled", "server")
    records = [replace(FAILED, error=RequestError(kind)) for kind in kinds]
    summary = summarize(records, AllAtOnce(), streamed=True)
    counts = (summary.num_rejected, summary.num_timed_out, summary.num_cancelled)
    assert (summary.num_failed, counts) == (5, (1, 2, 1))


def test_resampling_agrees_with_the_closed_form() -> None:
    sample = np.random.default_rng(0).exponential(1.0, 400)
    shortcut, drawn = distribute(sample), distribute(sample, [1] * 400)
    assert shortcut and drawn
    for name in ("p50", "p90", "p95"):
        assert shortcut.intervals_ms[name] == pytest.approx(drawn.intervals_ms[name], rel=0.08)
