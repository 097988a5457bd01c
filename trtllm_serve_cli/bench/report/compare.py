"""Two results beside each other: what changed, and whether that is more than noise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import fmean
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
_CERTAINTY = {"noise": "within the noise", "untold": "how much of it is noise is not known"}
_FORM = re.compile(
    r"(?P<metric>\w+)(?::(?P<statistic>mean|max|p\d+(?:\.\d+)?))?\s*"
    r"(?P<side>[<>])\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*%"
)
# What must be alike for two results to answer the same question.
_COMPARABLE_SETTINGS = ("workload", "load", "stream", "objectives")


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run: a statistic of a time, a rate, or the share of failed requests.

    `percent` is of a time: 100 for the maximum, `None` for the mean.
    """

    metric: str
    percent: float | None = None

    @property
    def declared(self) -> TimeMetric | RateMetric | None:
        """Its row in the table of metrics; the share of failed requests has none."""
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
    """A change that fails a comparison: more than `percent`, or with `is_above` false less."""

    measure: Measure
    is_above: bool
    percent: float

    def __str__(self) -> str:
        return f"{self.measure}{'>' if self.is_above else '<'}{self.percent:+g}%"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both results: times in milliseconds, failures in per cent of the requests.

    `change` is relative (0.05 is 5 % more), of failures in points (0.01 is one per cent more of the
    requests). `interval` is its 95 % confidence interval, by `by`: the runs or the requests.
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
    """Something that was not alike. `is_question`: the results then answer other questions."""

    what: str
    before: Any
    after: Any
    is_question: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]
    num_runs: tuple[int, int]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_limit(text: str) -> Limit:
    """`METRIC[:STATISTIC]>+5%` or `…<-5%`; a time's statistic is its p50 unless one is named.

    Raises `BadInput`.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise _refuse(text, "its form is METRIC:STATISTIC>+5%, or <-5% for what must not fall")
    metric, statistic_name = found["metric"], found["statistic"]
    known = (*NAMED_TIMES, *NAMED_RATES, FAILED)
    if metric not in known:
        raise _refuse(text, f"{metric!r} is none of {', '.join(known)}")
    if statistic_name and metric not in NAMED_TIMES:
        raise _refuse(text, f"{metric} is one figure, and has no {statistic_name}")
    percent = {"mean": None, "max": 100.0}.get(statistic_name or "p50", -1.0)
    if percent == -1.0:
        percent = float((statistic_name or "p50").removeprefix("p"))
        if not 0 < percent <= 100:
            raise _refuse(text, "a percentile is above 0 and at most 100")
    measure = Measure(metric, percent if metric in NAMED_TIMES else None)
    return Limit(measure, found["side"] == ">", float(found["limit"]))


def compare(before: StoredResult, after: StoredResult, extra: Iterable[Measure] = ()) -> Comparison:
    """Every usual figure and those of `extra` that both results have, with what else differs."""
    changes = (
        _compare_one(measure, before, after)
        for measure in dict.fromkeys((*DEFAULT_MEASURES, *extra))
    )
    return Comparison(
        changes=tuple(change for change in changes if change is not None),
        differences=tuple(find_differences(before.summary, after.summary)),
        num_runs=(len(before.runs), len(after.runs)),
        warnings=tuple(
            words
            for name, result in (("the first", before), ("the second", after))
            for words in _warnings(name, result)
        ),
    )


def check_comparable(comparison: Comparison) -> None:
    """Raises `BadInput` when the results are of other workloads, loads or objectives."""
    mismatches = [each for each in comparison.differences if each.is_question]
    if mismatches:
        raise BadInput(
            "These results answer different questions.",
            why="; ".join(f"{each.what}: {each.before} and {each.after}" for each in mismatches),
            next_step="compare results of the same load, or add --allow-different",
        )


def check_limits(comparison: Comparison, limits: Sequence[Limit]) -> None:
    """Raises `CheckFailed` for changes beyond their limits, `BadInput` for figures not there."""
    changes = {change.measure: change for change in comparison.changes}
    violations = []
    for limit in limits:
        change = changes.get(str(limit.measure))
        if change is None:
            raise BadInput(
                f"The results do not tell {limit.measure}.",
                why=_explain_missing(limit.measure),
                next_step="measure both again with what it needs, or take that --fail-on away",
            )
        if change.change is None:
            raise BadInput(
                f"{limit.measure} was 0 before.",
                why=f"{limit} is about a change in per cent, and of 0 there is none",
                next_step="name another result first, or take that --fail-on away",
            )
        percent = change.change * 100
        if percent > limit.percent if limit.is_above else percent < limit.percent:
            certainty = _CERTAINTY.get(change.verdict, "beyond noise")
            violations.append(f"{limit}: it changed by {percent:+.1f} % ({certainty})")
    if violations:
        raise CheckFailed(
            f"{len(violations)} of {len(limits)} limits on changes are exceeded.",
            why="; ".join(violations),
            next_step="tllm bench report BEFORE AFTER -o report.html, and look at both; "
            "more --repeat makes the noise smaller",
        )


def _explain_missing(measure: Measure) -> str:
    if measure.declared is None or measure.declared.needs is None:
        return "one of them has no completed request"
    return f"{measure.metric} needs {measure.declared.needs}"


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Difference]:
    """Where two `summary.json` were made in other circumstances."""
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
    """What is served, not where: the same model on another port is no other server."""
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
        yield f"the client was the bottleneck of {name} result ({result.name}): {words}"


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
    a, b = (fmean(side) for side in runs)
    interval, by = _interval(metric, measure.percent, before, after, runs)
    change = b / a - 1 if a > 0 else None
    verdict = _judge(interval, is_more_better=metric.is_higher_better)
    return Change(str(measure), a, b, change, interval, by, verdict)


def _interval(
    metric: TimeMetric | RateMetric,
    percent: float | None,
    before: StoredResult,
    after: StoredResult,
    runs: Sequence[Sequence[float]],
) -> tuple[Interval | None, By | None]:
    """That of the relative change. A rate is one figure of a run: one run tells no noise of it."""
    ratio, by = ratio_of_runs(*runs), RUNS
    if ratio is None and isinstance(metric, TimeMetric) and 1 in map(len, runs):
        a, b = (_groups_ms(metric, each.counted, each.streamed) for each in (before, after))
        ratio, by = ratio_of_requests(a, b, percent), REQUESTS
    return (None, None) if ratio is None else ((ratio[0] - 1, ratio[1] - 1), by)


def _groups_ms(
    metric: TimeMetric, records: Sequence[RequestRecord], streamed: bool
) -> list[list[float]]:
    sample = metric.sample_s(records, streamed=streamed)
    return [[time_s * 1e3 for time_s in times_s] for times_s in sample]


def _compare_failures(before: StoredResult, after: StoredResult) -> Change:
    """Shares are often 0, of which there are no ratios: they are subtracted, of all requests."""
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
    """The figure of each run; `None` of one that does not tell it."""
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
        f"The limit {text!r} cannot be read.",
        why=why,
        next_step=f"write it as in --fail-on {shlex.quote('ttft:p95>+5%')}, in quotes",
    )
