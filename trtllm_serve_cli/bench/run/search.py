"""Find the highest rate at which a server meets its objectives.

The search doubles the rate until an objective is missed, then bisects the gap (as a ratio) down to
the requested precision. A result is certain if the 95 % confidence interval of the measurement
excludes the limit; otherwise the rate runs again. The interval is a bootstrap over requests, if
they are sufficient; from the third run on, it is Student's t over the values of the runs. Failed
requests count as infinitely slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Literal

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult
from trtllm_serve_cli.bench.run.sweep import ShowProgress
from trtllm_serve_cli.bench.stats.confidence import (
    Interval,
    mean_of_runs,
    middle,
    resample,
    statistic,
)
from trtllm_serve_cli.bench.stats.statistics import NEVER_MS, finite, judge, judged_ms

Ending = Literal["found", "all_met", "none_met", "interrupted", "server_lost"]
_RUNS_FOR_STUDENT = 3
# The significant digits of a rate; runs cannot distinguish finer steps.
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The range of a search: from `lowest` to `highest`, in requests per second.

    It ends when the rates that meet and miss the objectives are within `precision` (0.05: 5 %) of
    each other. An uncertain rate runs up to `max_runs` times.
    """

    lowest: float
    highest: float | None = None
    precision: float = 0.05
    max_runs: int = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of one objective at one rate; `None` if too many requests failed.

    `interval_ms` is `None` if there are too few requests for an interval.
    """

    objective: str
    limit_ms: float
    measured_ms: float | None
    interval_ms: tuple[float | None, float | None] | None
    is_met: bool
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate of a search, and its measurements."""

    rate: float
    num_runs: int
    measured: tuple[Measured, ...]
    was_client_bottleneck: bool = False

    @property
    def is_met(self) -> bool:
        return all(each.is_met for each in self.measured)

    @property
    def is_sure(self) -> bool:
        """True if it certainly misses one objective, or certainly meets all of them."""
        if self.is_met:
            return all(each.is_sure for each in self.measured)
        return any(each.is_sure and not each.is_met for each in self.measured)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    `rate` is the highest that met every objective; `None` if the lowest did not. `interval` is from
    the highest rate that certainly meets them (below all that certainly miss) to the lowest that
    certainly misses one; an end is `None` if no rate was certain. `results` are by rate, in the
    order of the search.
    """

    rate: float | None
    interval: tuple[float | None, float | None]
    ending: Ending
    probes: tuple[Probe, ...]
    results: Mapping[float, BenchmarkResult] = field(default_factory=dict)

    @property
    def client_bottlenecks(self) -> tuple[float, ...]:
        """The rates that missed an objective while the client was the bottleneck, sorted."""
        missed = (probe for probe in self.probes if not probe.is_met)
        return tuple(sorted(probe.rate for probe in missed if probe.was_client_bottleneck))

    def to_json(self) -> dict[str, Any]:
        """Return the search as in `search.json`."""
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
) -> SearchResult:
    """Probe rates until the highest is found. A run that does not finish ends the search."""
    probes: list[Probe] = []
    results: dict[float, BenchmarkResult] = {}
    rate = next_rate(probes, plan)
    while rate is not None:
        benchmark = open_at(rate)
        probe, ending = _probe(benchmark, rate, objectives, plan.max_runs, show_progress)
        results[rate] = benchmark.result()
        if ending != "finished":
            return conclude(probes, ending, results)
        probes.append(probe)
        rate = next_rate(probes, plan)
    return conclude(probes, None, results)


def next_rate(probes: Sequence[Probe], plan: SearchPlan) -> float | None:
    """Return the rate to try next; `None` if the result is precise enough, or out of range."""
    if not probes:
        return plan.lowest
    edge = _lowest_missed(probes)
    met = _met_below(probes, edge)
    if not met:
        return None
    low = max(met)
    if math.isinf(edge):
        highest = math.inf if plan.highest is None else plan.highest
        return None if low >= highest else min(_round(low * 2), highest)
    between = _round(math.sqrt(low * edge))
    return between if edge > low * (1 + plan.precision) and low < between < edge else None


def conclude(
    probes: Sequence[Probe],
    ending: Ending | None,
    results: Mapping[float, BenchmarkResult] | None = None,
) -> SearchResult:
    """Derive the result from the probes; `ending` overrides the ending derived from them."""
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
        results=results or {},
    )


def _lowest_missed(probes: Sequence[Probe]) -> float:
    return min((probe.rate for probe in probes if not probe.is_met), default=math.inf)


def _met_below(probes: Sequence[Probe], edge: float) -> list[float]:
    return [probe.rate for probe in probes if probe.is_met and probe.rate < edge]


def measure(objective: Objective, runs: Sequence[Sequence[RequestRecord]]) -> Measured:
    """Check whether the runs at one rate meet an objective, and whether that is certain."""
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
) -> tuple[Probe, Literal["finished", "interrupted", "server_lost"]]:
    while True:
        with show_progress(benchmark) as watch:
            ending = benchmark.run(watch).ending
        runs = [[record for record in run.records if not record.is_ramp] for run in benchmark.runs]
        measured = tuple(measure(objective, runs) for objective in objectives)
        probe = Probe(rate, len(runs), measured, benchmark.result().client.was_bottleneck)
        if ending != "finished" or probe.is_sure or len(runs) >= max_runs:
            return probe, ending


def _interval(
    groups: Sequence[Sequence[Sequence[float]]], percent: float | None
) -> Interval | None:
    requests = list(chain.from_iterable(groups))
    if all(value == NEVER_MS for values in requests for value in values):
        # No request completed, or none has this time.
        return NEVER_MS, NEVER_MS
    figures = [statistic(list(chain.from_iterable(run)), percent) for run in groups if any(run)]
    if len(figures) >= _RUNS_FOR_STUDENT and (by_runs := mean_of_runs(figures)):
        return by_runs
    (drawn,) = resample(requests, (percent,))
    return None if drawn is None else middle(drawn)


def _round(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")
