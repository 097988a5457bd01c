"""Compute the changes between two results and check whether each change exceeds the noise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import fmean, geometric_mean
from typing import Any, Literal

from trtllm_serve_cli.bench.model.metrics import (
    NAMED_RATES,
    NAMED_TIMES,
    RateMetric,
    TimeMetric,
)
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.stats.confidence import (
    Interval,
    middle,
    ratio_of_requests,
    ratio_of_runs,
    resample,
    statistic,
)
from trtllm_serve_cli.bench.stats.statistics import completed_part
from trtllm_serve_cli.errors import BadInput, CheckFailed

Verdict = Literal["better", "worse", "noise", "untold"]
By = Literal["runs", "requests"]
RUNS: By = "runs"
REQUESTS: By = "requests"
FAILED = "failed"
_CERTAINTY = {"noise": "within the noise", "untold": "the noise is unknown"}
_FORM = re.compile(
    r"(?P<metric>\w+)(?::(?P<statistic>mean|max|p\d+(?:\.\d+)?))?\s*"
    r"(?P<side>[<>])\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*%"
)
# Two results are comparable only if these settings are the same.
_COMPARABLE_SETTINGS = ("workload", "load", "stream", "objectives")


@dataclass(frozen=True, slots=True)
class Measure:
    """A value that is compared between two results.

    The value is a time statistic, a rate, or the fraction of failed requests. For a time statistic,
    `percent` is the percentile, 100 for the maximum, or `None` for the mean.
    """

    metric: str
    percent: float | None = None

    @property
    def declared(self) -> TimeMetric | RateMetric | None:
        """The entry in `TIMES` or `RATES`, or `None` for the fraction of failed requests."""
        return NAMED_TIMES.get(self.metric) or NAMED_RATES.get(self.metric)

    def __str__(self) -> str:
        if self.metric not in NAMED_TIMES:
            return self.metric
        names = {None: "mean", 100.0: "max"}
        return f"{self.metric}:{names.get(self.percent) or f'p{self.percent:g}'}"


DEFAULT_MEASURES = (
    *(Measure(name, percent) for name, time in NAMED_TIMES.items() for percent in time.compared),
    *map(Measure, (*NAMED_RATES, FAILED)),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the change of a measure.

    If `is_above` is true, a change above `percent` violates the limit. Otherwise, a change below
    `percent` violates the limit. For failures, `percent` is in percentage points.
    """

    measure: Measure
    is_above: bool
    percent: float

    def __str__(self) -> str:
        return f"{self.measure}{'>' if self.is_above else '<'}{self.percent:+g}%"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one measure between two results.

    - `before` and `after` are the values in the first and second result. Times are in milliseconds,
      rates are per second, and failures are in percent of the requests. Times and rates are
      geometric means over the runs if `by` is `runs`.
    - `change` is a fraction of `before` for times and rates: 0.05 means 5% more. If `before` is 0,
      this fraction is undefined and `change` is `None`. For failures, `change` is the difference
      between the fractions of failed requests: 0.01 means one percentage point.
    - `interval` is the 95% confidence interval for `change`, or `None` if it cannot be estimated.
    - `by` is `runs` if `interval` is estimated from the variation between runs, `requests` if it is
      estimated from the variation between requests, or `None` if `interval` is `None`.
    - `verdict` is `better` or `worse`, `noise` if `interval` includes 0, or `untold` if `interval`
      is `None`.
    """

    measure: str
    before: float
    after: float
    change: float | None
    interval: Interval | None
    by: By | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting or environment property that differs between two results.

    `what` is the name of the setting or property. `before` and `after` are the values in the first
    and second result. If `is_question` is true, the results are not comparable.
    """

    what: str
    before: Any
    after: Any
    is_question: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes between two results, and the facts that are needed to judge them.

    `is_streamed` is true if both results were measured with `--stream`.
    """

    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    num_runs: tuple[int, int]
    is_streamed: bool
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_limit(text: str) -> Limit:
    """Parse `METRIC[:STATISTIC]>+5%` or `METRIC[:STATISTIC]<-5%`.

    If STATISTIC is omitted and the metric is a time, the limit applies to the median. Raise
    `BadInput` if `text` is invalid.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise _refuse(
            text,
            "the format is METRIC[:STATISTIC]>+5%, "
            "or METRIC[:STATISTIC]<-5% for a metric that must not decrease",
        )
    metric, statistic_name = found["metric"], found["statistic"]
    known = (*NAMED_TIMES, *NAMED_RATES, FAILED)
    if metric not in known:
        raise _refuse(
            text, f"{metric!r} is not a supported metric; the metrics are {', '.join(known)}"
        )
    if statistic_name and metric not in NAMED_TIMES:
        raise _refuse(text, f"{metric!r} is a single value, so omit {':' + statistic_name!r}")
    percent = {"mean": None, "max": 100.0}.get(statistic_name or "p50", -1.0)
    if percent == -1.0:
        percent = float((statistic_name or "p50").removeprefix("p"))
        if not 0 < percent <= 100:
            raise _refuse(text, "the percentile must be above 0 and at most 100")
    measure = Measure(metric, percent if metric in NAMED_TIMES else None)
    return Limit(measure, found["side"] == ">", float(found["limit"]))


def compare(before: StoredResult, after: StoredResult, extra: Iterable[Measure] = ()) -> Comparison:
    """Compare two results on the default measures and the measures in `extra`.

    A measure is omitted if either result contains no requests outside the ramp, or if a run in
    either result did not measure it. The comparison also lists differences in settings and
    environment.
    Its warnings report partial results and client bottlenecks.
    """
    changes = (
        _compare_one(measure, before, after)
        for measure in dict.fromkeys((*DEFAULT_MEASURES, *extra))
    )
    return Comparison(
        changes=tuple(change for change in changes if change is not None),
        differences=tuple(find_differences(before.summary, after.summary)),
        num_runs=(len(before.runs), len(after.runs)),
        is_streamed=before.streamed and after.streamed,
        warnings=tuple(
            words
            for name, result in (("the first", before), ("the second", after))
            for words in _warnings(name, result)
        ),
    )


def check_comparable(comparison: Comparison) -> None:
    """Raise `BadInput` if the results differ in workload, load, streaming or objectives."""
    mismatches = [each for each in comparison.differences if each.is_question]
    if mismatches:
        # Different benchmarks have different settings, so listing the settings does not help.
        benchmarks = [each for each in comparison.differences if each.what == "benchmark"]
        raise BadInput(
            "The results are not comparable.",
            why="; ".join(
                f"{each.what} is {_setting(each.before)} in the first result and "
                f"{_setting(each.after)} in the second"
                for each in benchmarks or mismatches
            ),
            next_step="compare results with the same settings, or add --allow-different to compare "
            "these results anyway",
        )


def _setting(value: Any) -> str:
    return "not set" if value is None else str(value)


def check_limits(comparison: Comparison, limits: Sequence[Limit]) -> None:
    """Raise `CheckFailed` if a change violates a limit.

    Raise `BadInput` if a result does not contain a limit's metric. Also raise `BadInput` if a
    time or rate with a limit is 0 in the first result, because a relative change from 0 is
    undefined.
    """
    changes = {change.measure: change for change in comparison.changes}
    violations = []
    for limit in limits:
        change = changes.get(str(limit.measure))
        if change is None:
            raise _missing_measure(limit, is_streamed=comparison.is_streamed)
        if change.change is None:
            raise BadInput(
                f"{limit.measure} is 0 in the first result.",
                why=f"the limit '{limit}' applies to the relative change, which is undefined if "
                "the first value is 0",
                next_step=f"compare other results, or omit the limit '{limit}'",
            )
        percent = change.change * 100
        if percent > limit.percent if limit.is_above else percent < limit.percent:
            certainty = _CERTAINTY.get(change.verdict, "beyond the noise")
            violations.append(f"a change of {percent:+.1f} % ({certainty}) violates '{limit}'")
    if violations:
        raise CheckFailed(
            f"The check failed for {len(violations)} of {len(limits)} limits.",
            why="; ".join(violations),
            next_step="run `tllm bench report BEFORE AFTER -o report.html` to compare the results "
            "in charts, or run both benchmarks again with a higher --repeat to reduce the noise",
        )


def _missing_measure(limit: Limit, *, is_streamed: bool) -> BadInput:
    """Return the error for a limit whose measure is missing from the comparison."""
    measure = limit.measure
    needs = measure.declared and measure.declared.needs
    if needs is None:
        why = "at least one run has no completed requests (ramp requests are not counted)"
        fix = "fix the failures or run longer benchmarks"
    elif needs == "--stream" and is_streamed:
        why = (
            "in at least one run, no completed request has enough output tokens for "
            f"{measure.metric!r} (ramp requests are not counted)"
        )
        fix = "fix the failures, run both benchmarks again with longer responses"
    else:
        why = f"{measure.metric!r} is measured only with {needs}"
        fix = f"run both benchmarks again with {needs}"
    return BadInput(
        f"At least one result does not contain {measure}.",
        why=why,
        next_step=f"{fix}, or omit the limit '{limit}'",
    )


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Difference]:
    """Yield the differences in settings and environment between two `summary.json` files."""
    parts: tuple[tuple[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]], ...] = (
        ("", lambda summary: {"benchmark": summary.get("benchmark")}),
        ("", lambda summary: _without(summary["settings"], ("repeat",))),
        ("server ", _server),
        ("machine ", lambda summary: summary.get("machine", {})),
        ("version of ", lambda summary: summary.get("versions", {})),
    )
    for title, part in parts:
        a, b = dict(_flatten(part(before))), dict(_flatten(part(after)))
        for name in dict.fromkeys((*a, *b)):
            if a.get(name) != b.get(name):
                is_question = not title and name.partition(".")[0] in _COMPARABLE_SETTINGS
                yield Difference(f"{title}{name}", a.get(name), b.get(name), is_question)


def _server(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a result's targets without their addresses, inputs and summaries.

    Addresses are omitted because the same server may use a different port in each benchmark.
    """
    targets = [_without(target, ("address", "inputs", "summary")) for target in summary["targets"]]
    return targets[0] if len(targets) == 1 else {"targets": targets}


def _without(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _warnings(name: str, result: StoredResult) -> Iterable[str]:
    if result.summary.get("is_partial"):
        yield f"{name} result ({result.name}) is partial"
    for words in result.summary["client"].get("bottlenecks", ()):
        yield f"the client was the bottleneck in {name} result ({result.name}): {words}"


def _compare_one(measure: Measure, before: StoredResult, after: StoredResult) -> Change | None:
    if not (before.counted and after.counted):
        return None
    metric = measure.declared
    if metric is None:
        return _compare_failures(before, after)
    sides = [_per_run(metric, measure.percent, result) for result in (before, after)]
    if any(None in side for side in sides):
        return None
    runs = [[value for value in side if value is not None] for side in sides]
    (a, b), interval, by = _estimate(metric, measure.percent, before, after, runs)
    change = b / a - 1 if a > 0 else None
    verdict = _judge(interval, is_more_better=metric.is_higher_better)
    return Change(str(measure), a, b, change, interval, by, verdict)


def _estimate(
    metric: TimeMetric | RateMetric,
    percent: float | None,
    before: StoredResult,
    after: StoredResult,
    runs: Sequence[Sequence[float]],
) -> tuple[list[float], Interval | None, By | None]:
    """Return both values, and the confidence interval for the relative change with its basis.

    If both results have several runs, the interval is estimated from the variation between runs,
    and the values are the geometric means over the runs. Otherwise, the interval for a time is
    estimated from the variation between requests, and the values are statistics of all requests. A
    rate from a single run has no interval.
    """
    if ratio := ratio_of_runs(*runs):
        return [geometric_mean(side) for side in runs], _as_change(ratio), RUNS
    if isinstance(metric, RateMetric) or 1 not in map(len, runs):
        return [fmean(side) for side in runs], None, None
    groups = [_groups_ms(metric, each.counted, each.streamed) for each in (before, after)]
    values = [statistic(list(chain.from_iterable(side)), percent) for side in groups]
    ratio = ratio_of_requests(groups[0], groups[1], percent)
    return values, _as_change(ratio), None if ratio is None else REQUESTS


def _as_change(ratio: Interval | None) -> Interval | None:
    return None if ratio is None else (ratio[0] - 1, ratio[1] - 1)


def _groups_ms(
    metric: TimeMetric, records: Sequence[RequestRecord], streamed: bool
) -> list[list[float]]:
    sample = metric.sample_s(records, streamed=streamed)
    return [[time_s * 1e3 for time_s in times_s] for times_s in sample]


def _compare_failures(before: StoredResult, after: StoredResult) -> Change:
    """Compare the fractions of failed requests.

    The change is the difference between the fractions, because their ratio is undefined if no
    request failed in the first result.
    """
    failures = [
        [[float(not (r.is_completed or r.is_interrupted))] for r in result.counted]
        for result in (before, after)
    ]
    a, b = (fmean(failed for (failed,) in each) for each in failures)
    drawn = [resample(each, (None,), seed)[0] for seed, each in enumerate(failures)]
    known = [values for values in drawn if values is not None]
    num = min((values.size for values in known), default=0)
    interval = middle(known[1][:num] - known[0][:num]) if len(known) == 2 else None
    by = None if interval is None else REQUESTS
    verdict = _judge(interval, is_more_better=False)
    return Change(FAILED, 100 * a, 100 * b, b - a, interval, by, verdict)


def _judge(interval: Interval | None, *, is_more_better: bool) -> Verdict:
    if interval is None:
        return "untold"
    low, high = interval
    if low <= 0 <= high:
        return "noise"
    return "better" if (low > 0) == is_more_better else "worse"


def _per_run(
    metric: TimeMetric | RateMetric, percent: float | None, result: StoredResult
) -> list[float | None]:
    """Return the metric's value in each run, or `None` for runs that did not measure it."""
    objectives = [parse_objective(text) for text in result.settings["objectives"]]
    if isinstance(metric, RateMetric):
        parts = (completed_part(run, objectives, streamed=result.streamed) for run in result.runs)
        return [metric.read(part) for part in parts]
    samples = [
        list(chain.from_iterable(_groups_ms(metric, run, result.streamed))) for run in result.runs
    ]
    return [statistic(sample, percent) if sample else None for sample in samples]


def _refuse(text: str, why: str) -> BadInput:
    return BadInput(
        f"The limit {text!r} is invalid.",
        why=why,
        next_step=f"pass a valid limit in quotes, for example `--fail-on "
        f"{shlex.quote('ttft:p95>+5%')}`",
    )
