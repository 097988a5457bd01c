"""Find the highest rate at which a server meets its objectives.

The search starts at the lowest rate and doubles the rate until the server misses an objective or
the rate reaches the maximum. If a rate above the lowest rate missed an objective, the search
bisects the range between the highest rate that met all objectives and the lowest rate that missed
an objective. Each step runs the benchmark at the geometric mean of these two rates, until the
requested precision is reached.

A measurement is certain if its 95% confidence interval excludes the objective's limit. If the
measurements at a rate are uncertain, the search repeats the benchmark at this rate. With one or two
runs, the interval is computed with a bootstrap over the requests, if there are enough requests.
With three or more runs, it is a Student's t interval around the value over all runs, with the
variation between the values of the runs (sectioning). Failed requests count as infinitely slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Literal

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult
from trtllm_serve_cli.bench.run.sweep import ShowProgress
from trtllm_serve_cli.bench.stats.confidence import (
    Interval,
    around_pooled,
    middle,
    resample,
    statistic,
)
from trtllm_serve_cli.bench.stats.statistics import NEVER_MS, finite, judge, judged_ms
from trtllm_serve_cli.errors import TllmError

Ending = Literal["found", "all_met", "none_met", "interrupted", "server_lost"]
_RUNS_FOR_STUDENT = 3
# Number of significant digits to which rates are rounded. Runs are too noisy for finer steps.
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The plan for a search between the rates `lowest` and `highest`, in requests per second.

    The search ends when the lowest rate that missed an objective is at most `precision` above the
    highest rate that met all objectives. A `precision` of 0.05 means 5%. If the result at a rate is
    uncertain, the search repeats the benchmark at this rate, up to `max_runs` runs per rate.
    """

    lowest: float
    highest: float = math.inf
    precision: float = 0.05
    max_runs: int = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one objective at one rate.

    `measured_ms` is `None` if too many requests failed, or if the metric was not measured for any
    request. `interval_ms` is the 95% confidence interval, or `None` if there are too few requests
    to estimate it. A bound of the interval is `None` if it is infinite. `is_sure` is true if the
    whole interval is on the same side of the limit as the measured value.
    """

    objective: str
    limit_ms: float
    measured_ms: float | None
    interval_ms: tuple[float | None, float | None] | None
    is_met: bool
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """The measurements of all objectives at one rate.

    `rate` is in requests per second.
    """

    rate: float
    num_runs: int
    measured: tuple[Measured, ...]
    was_client_bottleneck: bool = False

    @property
    def is_met(self) -> bool:
        return all(each.is_met for each in self.measured)

    @property
    def is_sure(self) -> bool:
        """Return whether the rate certainly misses an objective or certainly meets all of them."""
        if self.is_met:
            return all(each.is_sure for each in self.measured)
        return any(each.is_sure and not each.is_met for each in self.measured)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    `rate` is the highest rate that met every objective, or `None` if no measured rate met every
    objective. The upper bound of `interval` is the lowest rate that certainly misses an objective.
    The lower bound is the highest rate below the upper bound that certainly meets every objective.
    A bound is `None` if no measured rate qualifies. `last` is the benchmark result for the last
    measured rate. `error` is set if the search ended because the benchmark for the next rate could
    not be opened.
    """

    rate: float | None
    interval: tuple[float | None, float | None]
    ending: Ending
    probes: tuple[Probe, ...]
    last: BenchmarkResult | None = None
    error: TllmError | None = None

    @property
    def client_bottlenecks(self) -> tuple[float, ...]:
        """The sorted rates at which an objective was missed and the client was the bottleneck."""
        missed = (probe for probe in self.probes if not probe.is_met)
        return tuple(sorted(probe.rate for probe in missed if probe.was_client_bottleneck))

    def to_json(self) -> dict[str, Any]:
        """Return the content of `search.json`."""
        return {
            "rate": self.rate,
            "interval": self.interval,
            "ending": self.ending,
            "probes": [
                asdict(probe) | {"is_met": probe.is_met, "is_sure": probe.is_sure}
                for probe in self.probes
            ],
        }


def run_search(
    plan: SearchPlan,
    objectives: Sequence[Objective],
    open_at: Callable[[float], Benchmark],
    show_progress: ShowProgress,
    keep: Callable[[float, BenchmarkResult], None] = lambda rate, result: None,
) -> SearchResult:
    """Benchmark one rate after another until the highest rate that meets the objectives is found.

    `open_at` returns a benchmark for the given rate. A run that does not finish ends the search. So
    does a `TllmError` of `open_at`, but it is raised if no rate has been measured yet.
    `keep` receives the result for each rate. The search itself keeps the request records of only
    one rate, because the records of all rates would need too much memory.
    """
    probes: list[Probe] = []
    result: BenchmarkResult | None = None
    rate = next_rate(probes, plan)
    while rate is not None:
        result = None  # Free the records of the previous rate before the next rate is measured.
        try:
            benchmark = open_at(rate)
        except TllmError as error:
            if not probes:
                raise
            return replace(conclude(probes, "server_lost"), error=error)
        probe, result = _probe(benchmark, rate, objectives, plan.max_runs, show_progress)
        keep(rate, result)
        if result.ending != "finished":
            return conclude(probes, result.ending, result)
        probes.append(probe)
        rate = next_rate(probes, plan)
    return conclude(probes, None, result)


def next_rate(probes: Sequence[Probe], plan: SearchPlan) -> float | None:
    """Return the rate to measure next, or `None` if the search has ended.

    The search ends if the result is precise enough, if the lowest rate missed an objective, or if
    the plan's highest rate met all objectives.
    """
    if not probes:
        return plan.lowest
    edge = _lowest_missed(probes)
    met = _met_below(probes, edge)
    if not met:
        return None
    low = max(met)
    if math.isinf(edge):
        return None if low >= plan.highest else min(_round(low * 2), plan.highest)
    between = _round(math.sqrt(low * edge))
    return between if edge > low * (1 + plan.precision) and low < between < edge else None


def conclude(
    probes: Sequence[Probe], ending: Ending | None, last: BenchmarkResult | None = None
) -> SearchResult:
    """Return the search result for the measurements at all rates.

    `ending` is the reason why the search ended. If it is `None`, the reason is derived from
    `probes`.
    """
    edge = _lowest_missed(probes)
    met = _met_below(probes, edge)
    sure = [probe for probe in probes if probe.is_sure]
    sure_edge = _lowest_missed(sure)
    found: Ending = "none_met" if not met else "all_met" if math.isinf(edge) else "found"
    return SearchResult(
        rate=max(met, default=None),
        interval=(
            max(_met_below(sure, sure_edge), default=None),
            None if math.isinf(sure_edge) else sure_edge,
        ),
        ending=ending or found,
        probes=tuple(probes),
        last=last,
    )


def _lowest_missed(probes: Sequence[Probe]) -> float:
    return min((probe.rate for probe in probes if not probe.is_met), default=math.inf)


def _met_below(probes: Sequence[Probe], edge: float) -> list[float]:
    return [probe.rate for probe in probes if probe.is_met and probe.rate < edge]


def measure(objective: Objective, runs: Sequence[Sequence[RequestRecord]]) -> Measured:
    """Measure one objective over all runs at one rate."""
    groups = judged_ms(objective.time_metric, runs)
    outcome = judge(objective, groups)
    interval, limit_ms = _interval(groups, objective.percent), objective.limit_ms
    return Measured(
        outcome.objective,
        limit_ms,
        outcome.measured_ms,
        None if interval is None else (finite(interval[0]), finite(interval[1])),
        outcome.is_met,
        is_sure=interval is not None
        and (interval[1] <= limit_ms if outcome.is_met else interval[0] > limit_ms),
    )


def _probe(
    benchmark: Benchmark,
    rate: float,
    objectives: Sequence[Objective],
    max_runs: int,
    show_progress: ShowProgress,
) -> tuple[Probe, BenchmarkResult]:
    while True:
        with show_progress(benchmark) as watch:
            benchmark.run(watch)
        result = benchmark.result()
        runs = [[record for record in run.records if not record.is_ramp] for run in benchmark.runs]
        measured = tuple(measure(objective, runs) for objective in objectives)
        probe = Probe(rate, len(runs), measured, result.client.was_bottleneck)
        if result.is_partial or probe.is_sure or len(runs) >= max_runs:
            return probe, result


def _interval(
    groups: Sequence[Sequence[Sequence[float]]], percent: float | None
) -> Interval | None:
    requests = list(chain.from_iterable(groups))
    if all(value == NEVER_MS for values in requests for value in values):
        # The objective is missed, because no request completed or the metric was not measured for
        # any completed request.
        return NEVER_MS, NEVER_MS
    figures = [statistic(list(chain.from_iterable(run)), percent) for run in groups if any(run)]
    if len(figures) >= _RUNS_FOR_STUDENT:
        pooled = statistic(list(chain.from_iterable(requests)), percent)
        if by_runs := around_pooled(pooled, figures):
            return by_runs
    (drawn,) = resample(requests, (percent,))
    return None if drawn is None else middle(drawn)


def _round(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")
