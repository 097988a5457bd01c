from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency, AtRate
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.report.compare import (
    Change,
    Comparison,
    Difference,
    Limit,
    Measure,
    check_comparable,
    check_limits,
    compare,
    find_differences,
    parse_limit,
)
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.errors import BadInput, CheckFailed

Keep = Callable[..., StoredResult]


def _change(comparison: Comparison, measure: str) -> Change:
    return next(change for change in comparison.changes if change.measure == measure)


def test_result_compared_with_itself_is_noise(keep: Keep) -> None:
    result = keep(make_result(runs=4))
    comparison = compare(result, result)
    assert {change.verdict for change in comparison.changes} == {"noise"}
    assert comparison.differences == ()
    assert comparison.num_runs == (4, 4)


def test_slower_server_is_worse_across_runs(keep: Keep) -> None:
    before = keep(make_result(runs=4), "before")
    after = keep(make_result(runs=4, gap_s=0.025), "after")
    comparison = compare(before, after)
    itl = _change(comparison, "itl:p50")
    assert (itl.verdict, itl.by) == ("worse", "runs")
    assert itl.change == pytest.approx(0.25, abs=0.02)
    assert itl.interval is not None
    assert itl.interval[0] <= 0.25 <= itl.interval[1]
    assert _change(compare(after, before), "itl:p50").verdict == "better"


def test_single_runs_compare_times_by_request_and_not_rates(keep: Keep) -> None:
    before, after = keep(name="before"), keep(make_result(gap_s=0.025), "after")
    comparison = compare(before, after)
    itl = _change(comparison, "itl:p50")
    assert (itl.verdict, itl.by) == ("worse", "requests")
    rate = _change(comparison, "requests_per_s")
    assert (rate.verdict, rate.interval) == ("untold", None)


def _with_slow_last_run(runs: int, slowdown: float) -> BenchmarkResult:
    """Return a result whose last run has longer times than the others."""
    result = make_result(runs=runs, num_requests=20)
    slow = [replace(each, end_s=each.end_s * slowdown) for each in result.runs[-1].records]
    last = replace(result.runs[-1], records=tuple(slow))
    return replace(result, runs=(*result.runs[:-1], last))


@pytest.mark.parametrize(("num_before", "by"), [(10, "runs"), (1, "requests")])
def test_interval_contains_the_change(keep: Keep, num_before: int, by: str) -> None:
    before = keep(make_result(runs=num_before, num_requests=20), "before")
    change = _change(compare(before, keep(_with_slow_last_run(10, 50), "after")), "latency:p50")
    assert change.change is not None and change.interval is not None
    assert change.interval[0] <= change.change <= change.interval[1]
    assert change.change == pytest.approx(change.after / change.before - 1)
    assert change.by == by


def test_single_requests_have_no_interval(keep: Keep) -> None:
    before = keep(make_result(num_requests=1), "before")
    after = keep(make_result(num_requests=1, gap_s=0.025), "after")
    changes = compare(before, after).changes
    assert {(change.verdict, change.interval, change.by) for change in changes} == {
        ("untold", None, None)
    }


def test_only_many_failures_are_worse_than_noise(keep: Keep) -> None:
    none, one = keep(name="none"), keep(make_result(fails_every=100), "one")
    many = keep(make_result(fails_every=10), "many")
    assert _change(compare(none, one), "failed").verdict == "noise"
    failed = _change(compare(none, many), "failed")
    assert (failed.before, failed.after, failed.verdict) == (0.0, 10.0, "worse")
    assert failed.change == pytest.approx(0.1)


def test_unstreamed_run_has_no_token_times(keep: Keep) -> None:
    plain = keep(make_result(stream=False))
    measures = {change.measure for change in compare(plain, plain).changes}
    assert "latency:p95" in measures
    assert not [name for name in measures if name.startswith(("ttft", "itl", "tpot"))]


def test_goodput_is_compared_if_objectives_are_set(keep: Keep) -> None:
    objectives = [parse_objective("latency:p95<300ms")]
    result = keep(make_result(objectives=objectives, runs=3))
    goodput = _change(compare(result, result), "goodput")
    assert goodput.before == pytest.approx(result.figures["goodput_requests_per_s"], rel=0.02)


def test_values_match_the_results(keep: Keep) -> None:
    result = keep()
    comparison = compare(result, result, [Measure("latency", None), Measure("queue", 99.0)])
    for measure, figure in {
        "ttft:p95": result.figures["ttft"]["p95_ms"],
        "itl:p99": result.figures["itl"]["p99_ms"],
        "tpot:p50": result.figures["tpot"]["p50_ms"],
        "latency:mean": result.figures["request_latency"]["mean_ms"],
        "queue:p99": result.figures["queue_time"]["p99_ms"],
        "requests_per_s": result.figures["completed_requests_per_s"],
        "output_tokens_per_s": result.figures["output_tokens_per_s"],
    }.items():
        assert _change(comparison, measure).before == pytest.approx(figure), measure


def test_different_workloads_and_loads_are_rejected(keep: Keep) -> None:
    before = keep(name="before")
    longer = keep(make_result(workload=TokenNormDist(512)), "longer")
    faster = keep(make_result(AtRate(25)), "faster")
    closed = keep(make_result(AtConcurrency(2)), "closed")
    for other, what in (
        (longer, "workload.input_mean is 128 in the first result and 512 in the second"),
        (faster, "is 20 in the first result and 25 in the second"),
        (closed, "load.concurrency is not set in the first result and 2 in the second"),
    ):
        with pytest.raises(BadInput, match="not comparable") as refused:
            check_comparable(compare(before, other))
        assert what in refused.value.why
        assert "--allow-different" in refused.value.next_step
    check_comparable(compare(before, keep(make_result(num_requests=60), "shorter")))


def test_different_benchmarks_are_rejected_by_their_names(keep: Keep) -> None:
    before = keep(name="before")
    other = make_result(workload=Identity())
    after = keep(replace(other, settings=replace(other.settings, name="identity")), "after")
    with pytest.raises(BadInput, match="not comparable") as refused:
        check_comparable(compare(before, after))
    assert refused.value.why == (
        "benchmark is token-norm-dist in the first result and identity in the second"
    )


def test_other_differences_are_listed(keep: Keep) -> None:
    before = keep(name="before")
    after = keep(make_result(machine="aarch64", model="other"), "after")
    differences = list(find_differences(before.summary, after.summary))
    assert differences == [
        Difference("server name", "tensorrt_llm", "other"),
        Difference("machine architecture", "x86_64", "aarch64"),
    ]


def test_warns_about_partial_results_and_busy_clients(keep: Keep) -> None:
    before = keep(name="before")
    after = keep(make_result(ending="interrupted", loop_busy=0.95), "after")
    warnings = compare(before, after).warnings
    assert warnings[0] == "the second result (after) is partial"
    assert warnings[1].startswith("the client was the bottleneck in the second result (after)")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("ttft:p95>+5%", Limit(Measure("ttft", 95.0), True, 5.0)),
        ("itl:p99.9 > 10 %", Limit(Measure("itl", 99.9), True, 10.0)),
        ("latency:mean>+5%", Limit(Measure("latency", None), True, 5.0)),
        ("latency>5%", Limit(Measure("latency", 50.0), True, 5.0)),
        ("requests_per_s<-2.5%", Limit(Measure("requests_per_s"), False, -2.5)),
        ("failed>+1%", Limit(Measure("failed"), True, 1.0)),
    ],
)
def test_parse_limit(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit
    assert parse_limit(str(limit)) == limit


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:p95", "ttft:p95>5ms", "tftt:p95>5%", "ttft:p0>5%", "failed:p95>1%"]
)
def test_invalid_limit_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="is invalid") as refused:
        parse_limit(text)
    assert "--fail-on" in refused.value.next_step


def test_change_beyond_its_limit_fails(keep: Keep) -> None:
    comparison = compare(keep(name="before"), keep(make_result(gap_s=0.025), "after"))
    check_limits(comparison, [parse_limit("itl:p50>+30%"), parse_limit("requests_per_s<-50%")])
    with pytest.raises(CheckFailed, match="1 of 2") as failed:
        check_limits(comparison, [parse_limit("itl:p50>+5%"), parse_limit("itl:p50>+90%")])
    assert "a change of +2" in failed.value.why
    assert "% (beyond the noise) violates 'itl:p50>+5%'" in failed.value.why


def test_change_with_unknown_noise_is_reported_as_such(keep: Keep) -> None:
    comparison = compare(keep(name="before"), keep(make_result(AtRate(15)), "after"))
    assert _change(comparison, "requests_per_s").verdict == "untold"
    with pytest.raises(CheckFailed) as failed:
        check_limits(comparison, [parse_limit("requests_per_s<-5%")])
    assert "% (the noise is unknown)" in failed.value.why


def test_limit_on_a_metric_that_was_0_is_rejected(keep: Keep) -> None:
    missed = keep(make_result(objectives=[parse_objective("ttft:p95<0.001ms")]))
    limit = parse_limit("goodput<-5%")
    with pytest.raises(BadInput, match="goodput is 0 in the first result"):
        check_limits(compare(missed, missed, [limit.measure]), [limit])


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("ttft:p95>+5%", "'ttft' is measured only with --stream"),
        ("goodput<-5%", "'goodput' is measured only with --slo"),
        (
            "latency>+5%",
            "at least one run has no completed requests (ramp requests are not counted)",
        ),
    ],
)
def test_limit_on_a_missing_metric_is_rejected(keep: Keep, limit: str, why: str) -> None:
    plain = keep(make_result(stream=False, fails_every=1))
    measure = parse_limit(limit).measure
    with pytest.raises(BadInput, match=f"does not contain {measure}") as refused:
        check_limits(compare(plain, plain, [measure]), [parse_limit(limit)])
    assert refused.value.why == why


@pytest.mark.parametrize("metric", ["ttft", "itl", "tpot"])
def test_limit_on_a_streamed_metric_without_samples_is_rejected(keep: Keep, metric: str) -> None:
    failed = keep(make_result(fails_every=1))
    with pytest.raises(BadInput, match=f"does not contain {metric}") as refused:
        check_limits(compare(failed, failed), [parse_limit(f"{metric}>+5%")])
    assert refused.value.why == (
        f"in at least one run, no completed request has enough output tokens for {metric!r} "
        "(ramp requests are not counted)"
    )
    assert "with longer responses, or omit the limit" in refused.value.next_step


def test_result_with_only_ramp_requests_has_no_changes(keep: Keep) -> None:
    result = keep()
    ramp = replace(result, records=tuple(replace(r, is_ramp=True) for r in result.records))
    assert compare(result, ramp).changes == ()
