from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.samples.bench_results import make_result, make_run
from trtllm_serve_cli.bench.model.arrivals import AtRate, Load
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.report.tables import search_summary
from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult, Ending, Run, Watch
from trtllm_serve_cli.bench.run.search import (
    Measured,
    Probe,
    SearchPlan,
    SearchResult,
    conclude,
    measure,
    next_rate,
    run_search,
)
from trtllm_serve_cli.bench.stats.statistics import summarize
from trtllm_serve_cli.errors import NoServer

LATENCY = parse_objective("latency:p95<100ms")


def _probe(rate: float, is_met: bool, is_sure: bool = True) -> Probe:
    measured = Measured(str(LATENCY), 100, 50, (40, 60), is_met, is_sure)
    return Probe(rate, 1, (measured,))


def _search_until(edge: float, plan: SearchPlan) -> list[Probe]:
    """Return all probes for a server that meets its objectives below `edge`."""
    probes: list[Probe] = []
    while (rate := next_rate(probes, plan)) is not None:
        probes.append(_probe(rate, rate < edge))
        assert len(probes) < 100
    return probes


@given(st.floats(1.1, 1e4), st.sampled_from([0.01, 0.05, 0.2]))
def test_search_ends_within_the_precision_of_the_edge(edge: float, precision: float) -> None:
    probes = _search_until(edge, SearchPlan(1.0, precision=precision))
    result = conclude(probes, None)
    assert result.ending == "found"
    assert result.rate is not None
    low, high = result.interval
    assert low == result.rate < edge
    assert high is not None
    assert edge <= high <= low * (1 + precision) * 1.02  # rates have three digits
    assert len(probes) == len({probe.rate for probe in probes})


def test_search_stops_if_the_lowest_rate_misses() -> None:
    result = conclude(_search_until(0.5, SearchPlan(1.0)), None)
    assert (result.rate, result.ending, len(result.probes)) == (None, "none_met", 1)


def test_search_stops_at_the_highest_rate() -> None:
    probes = _search_until(1e9, SearchPlan(1.0, highest=7.0))
    assert [probe.rate for probe in probes] == [1, 2, 4, 7]
    result = conclude(probes, None)
    assert result.ending == "all_met"
    assert search_summary(result)[0].startswith(
        "Every measured rate up to 7 requests/s, the highest in the search, met every objective"
    )


def test_uncertain_rates_widen_the_interval() -> None:
    probes = [_probe(4, True), _probe(5, True, False), _probe(6, False, False), _probe(8, False)]
    result = conclude(probes, None)
    assert (result.rate, result.interval) == (5, (4, 8))


def test_rate_met_above_a_missed_rate_is_ignored() -> None:
    result = conclude([_probe(1, True), _probe(2, False), _probe(4, True)], None)
    assert (result.rate, result.interval) == (1, (1, 2))


def _record(index: int, latency_s: float, *, failed: bool = False) -> RequestRecord:
    error = RequestError("server", "no") if failed else None
    return RequestRecord(index, 0.0, 0.0, latency_s, 1, (latency_s,), (1,), error)


def test_clear_margin_is_certain_after_one_run() -> None:
    run = [_record(index, 0.05 + index * 1e-4) for index in range(100)]
    met = measure(LATENCY, [run])
    assert (met.is_met, met.is_sure) == (True, True)
    missed = measure(parse_objective("latency:p95<20ms"), [run])
    assert (missed.is_met, missed.is_sure) == (False, True)
    assert met.measured_ms == pytest.approx(59.4)


@pytest.mark.parametrize("objective", ["latency:p99<5s", "latency<6s"])
def test_percentile_without_enough_requests_is_never_certain(objective: str) -> None:
    # The true p99 is 5.57 s, and the distribution has no maximum.
    rng = np.random.default_rng(0)
    num_met = 0
    for _ in range(60):
        run = [_record(index, latency) for index, latency in enumerate(rng.lognormal(1, 0.308, 30))]
        measured = measure(parse_objective(objective), [run])
        num_met += measured.is_met
        assert (measured.is_sure, measured.interval_ms) == (False, None)
    assert num_met > 10


def test_rate_at_which_every_request_fails_is_certain() -> None:
    measured = measure(LATENCY, [[_record(index, 0.01, failed=True) for index in range(4)]])
    assert (measured.is_met, measured.is_sure, measured.measured_ms) == (False, True, None)


def test_limit_within_the_interval_is_not_certain() -> None:
    run = [_record(index, 0.05 + index * 1e-3) for index in range(100)]
    measured = measure(parse_objective("latency:p95<145ms"), [run])
    assert measured.interval_ms is not None
    low, high = measured.interval_ms
    assert low is not None
    assert high is not None
    assert low < 145 < high
    assert not measured.is_sure


def test_three_runs_use_the_noise_between_runs() -> None:
    runs = [[_record(index, level) for index in range(100)] for level in (0.08, 0.09, 0.12)]
    assert measure(LATENCY, runs[:1]).is_sure
    measured = measure(LATENCY, runs)
    assert (measured.is_met, measured.is_sure) == (False, False)


_LATENCIES_S = st.lists(st.floats(0.01, 10), min_size=1, max_size=4)


@given(
    st.lists(_LATENCIES_S, min_size=3, max_size=5),
    st.sampled_from(["p50", "p95", "mean", "max"]),
)
@example([[1.0]] * 4 + [[2.0] * 20], "mean")
def test_interval_between_runs_contains_the_measured_value(
    latencies_s: list[list[float]], statistic: str
) -> None:
    runs = [[_record(index, each) for index, each in enumerate(run)] for run in latencies_s]
    measured = measure(parse_objective(f"latency:{statistic}<1s"), runs)
    assert measured.measured_ms is not None and measured.interval_ms is not None
    low, high = measured.interval_ms
    assert low is not None and high is not None
    assert low <= measured.measured_ms <= high


def test_failed_requests_exceed_every_limit() -> None:
    run = [_record(index, 0.01, failed=index < 10) for index in range(100)]
    measured = measure(LATENCY, [run])
    assert (measured.is_met, measured.measured_ms) == (False, None)
    assert measure(parse_objective("latency:p50<100ms"), [run]).is_met


def test_search_and_summary_agree_on_what_is_met() -> None:
    run = [_record(index, 0.01, failed=index % 2 == 0) for index in range(100)]
    for text in ("latency:p95<3s", "latency:p50<3s", "latency:mean<3s", "latency<3s"):
        objective = parse_objective(text)
        (outcome,) = summarize(run, AtRate(1), streamed=True, objectives=[objective]).objectives
        measured = measure(objective, [run])
        assert (outcome.measured_ms, outcome.is_met) == (measured.measured_ms, measured.is_met)


@pytest.mark.parametrize("num_gaps", [1, 2, 99])
def test_failures_weigh_as_much_as_completed_requests(num_gaps: int) -> None:
    chunks = tuple(0.01 * number for number in range(num_gaps + 1))
    answer = RequestRecord(0, 0.0, 0.0, 1.0, 1, chunks, (1,) * len(chunks))
    failure = replace(answer, error=RequestError("rejected", "full"))
    measured = measure(parse_objective("itl:p95<50ms"), [[answer, failure] * 50])
    assert (measured.measured_ms, measured.is_met, measured.is_sure) == (None, False, True)
    apart = measure(parse_objective("itl:p95<50ms"), [[answer] * 50, [failure] * 50])
    assert not apart.is_met
    few = measure(parse_objective("itl:p95<50ms"), [[answer] * 97 + [failure] * 3])
    assert few.is_met


@contextmanager
def _quiet(benchmark: Benchmark) -> Iterator[Watch]:
    yield lambda progress: None


def _server(ending: Ending = "finished", busy: float = 0.2) -> Callable[[float], Benchmark]:
    """Return a function that opens benchmarks of an eight-slot server, full at 29 requests/s."""

    def open_at(rate: float) -> Benchmark:
        load = AtRate(rate)
        made = make_result(load, num_requests=2, loop_busy=busy)

        def measure(number: int, watch: Watch) -> tuple[Run, int]:
            records = make_run(load, run=number, num_requests=300)
            return replace(made.runs[0], records=records, ending=ending), 0

        return Benchmark(made.settings, made.models, measure)

    return open_at


def _search(
    objective: str,
    keep: Callable[[float, BenchmarkResult], None] = lambda rate, result: None,
    **server: Any,
) -> SearchResult:
    plan = SearchPlan(2.0, precision=0.1)
    return run_search(plan, [parse_objective(objective)], _server(**server), _quiet, keep)


def test_search_finds_where_the_queue_starts_to_grow() -> None:
    loads: dict[float, Load] = {}
    result = _search("ttft:p95<200ms", lambda rate, each: loads.update({rate: each.settings.load}))
    assert result.ending == "found"
    assert result.rate is not None
    assert 18 < result.rate < 30
    low, high = result.interval
    assert low is not None
    assert high is not None
    assert low <= result.rate <= high
    assert any(probe.num_runs > 1 for probe in result.probes)
    assert result.probes[0].num_runs == 1
    assert loads == {each.rate: AtRate(each.rate) for each in result.probes}


def _count_records() -> int:
    gc.collect()
    return sum(isinstance(each, RequestRecord) for each in gc.get_objects())


def test_search_keeps_the_records_of_one_rate_only() -> None:
    gc.freeze()  # count objects of this test only, since all objects of the tests are many
    before = _count_records()
    spare: list[int] = []
    _search(
        "ttft:p95<200ms",
        lambda rate, result: spare.append(_count_records() - before - len(result.records)),
    )
    assert len(spare) > 3
    assert max(spare) < 10


def test_uncertain_rate_runs_again() -> None:
    plan = SearchPlan(2.0, highest=2.0)
    result = run_search(plan, [parse_objective("ttft<200ms")], _server(), _quiet)
    assert [(probe.num_runs, probe.is_sure) for probe in result.probes] == [(3, True)]


def test_search_reports_rates_limited_by_the_client() -> None:
    assert _search("ttft:p95<200ms").client_bottlenecks == ()
    result = _search("ttft:p95<200ms", busy=0.99)
    assert result.client_bottlenecks[-1] == max(probe.rate for probe in result.probes)
    assert result.client_bottlenecks[0] > (result.rate or 0.0)


def test_interrupted_search_keeps_its_results() -> None:
    result = _search("ttft:p95<200ms", ending="interrupted")
    assert (result.ending, result.rate) == ("interrupted", None)
    assert result.last is not None and len(result.last.records) == 300


def _failing(open_at: Callable[[float], Benchmark], num_opened: int) -> Callable[..., Benchmark]:
    """Return `open_at` with a server that cannot be reached after `num_opened` calls."""
    rates: list[float] = []

    def open_some(rate: float) -> Benchmark:
        rates.append(rate)
        if len(rates) > num_opened:
            raise NoServer("No server responds.")
        return open_at(rate)

    return open_some


def test_search_keeps_its_results_if_the_server_ends_between_rates() -> None:
    objectives, plan = [parse_objective("ttft:p95<200ms")], SearchPlan(2.0)
    result = run_search(plan, objectives, _failing(_server(), 2), _quiet)
    assert [probe.rate for probe in result.probes] == [2, 4]
    assert (result.ending, result.rate) == ("server_lost", 4)
    assert isinstance(result.error, NoServer)
    with pytest.raises(NoServer):
        run_search(plan, objectives, _failing(_server(), 0), _quiet)


def test_search_result_as_json_has_every_probe() -> None:
    value = conclude([_probe(1, True), _probe(2, False)], None).to_json()
    assert (value["rate"], value["interval"], value["ending"]) == (1, (1, 2), "found")
    assert [(p["rate"], p["is_met"], p["is_sure"]) for p in value["probes"]] == [
        (1, True, True),
        (2, False, True),
    ]
