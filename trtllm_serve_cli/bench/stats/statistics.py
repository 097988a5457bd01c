"""Compute benchmark metrics from request records.

docs/reference/benchmark-metrics.md defines the metrics.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, Load
from trtllm_serve_cli.bench.model.metrics import RATES, TIMES, Completed, TimeMetric, per_s
from trtllm_serve_cli.bench.model.records import REJECTED, TIMED_OUT, RequestRecord
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.stats.confidence import (
    middle,
    rank,
    resample,
    resample_singles,
    statistic,
)

PERCENTS: Mapping[str, float] = {
    "p50": 50,
    "p75": 75,
    "p90": 90,
    "p95": 95,
    "p99": 99,
    "p999": 99.9,
}
# Fraction of delayed requests above which a run counts as limited by its concurrency cap.
_HELD_FRACTION = 0.01
# Time assigned to failed requests when objectives are checked. A statistic of at least
# `_MAX_FINITE_MS` (115 days) always includes failed requests, because measured times are shorter.
# One failed request among 100 million is enough to raise the mean to `_MAX_FINITE_MS`.
NEVER_MS = 1e18
_MAX_FINITE_MS = 1e10
_BATCH = 5
_MIN_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a sample of times, in milliseconds.

    Percentiles use the nearest rank, as in tensorrtllm_backend's benchmark. For example, the 95th
    percentile is the smallest measured value v such that at least 95% of the sample is at most v.

    `intervals_ms` contains the 95% confidence intervals for the percentiles, computed with the
    percentile bootstrap and a fixed seed. A percentile has no interval if the sample is too small.
    """

    num_samples: int
    mean_ms: float
    stdev_ms: float
    min_ms: float
    p50_ms: float
    p75_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    intervals_ms: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The part of a run after its initial transient.

    Of the completed requests, sorted by due time, the steady state excludes the first
    `num_requests_before`. It starts at `from_s`, the due time of the next request. The rates cover
    the completed requests that ended between `from_s` and the last due time. The median latency
    covers the completed requests that are not excluded. If `is_reached` is false, the run did not
    reach a steady state, and the times and rates are `None`.
    """

    is_reached: bool
    num_requests_before: int
    from_s: float | None = None
    completed_requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    request_latency_p50_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """An objective, its measured value, and whether the run met the objective.

    `measured_ms` is `None` if too many requests failed, or if the run did not measure the metric.
    """

    objective: str
    limit_ms: float
    measured_ms: float | None
    is_met: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of one run or of several repeated runs.

    A metric that was not measured is `None`. All metrics except `num_ramp` exclude ramp requests.

    - `rates` and `times` map the `key` of each metric in `RATES` and `TIMES` to its value. All
      values except the schedule lag cover only completed requests. Latencies and TTFTs are measured
      from the due time, or from the send time if the key ends with `_from_sent`.
    - `offered_requests_per_s` and `achieved_requests_per_s` cover all requests. They are `None` if
      the load has neither a rate nor recorded times, or if no run has at least two requests.
    """

    num_requests: int
    num_completed: int
    num_failed: int
    num_interrupted: int
    num_rejected: int
    num_timed_out: int
    num_cancelled: int
    num_ramp: int
    num_held: int
    failures: dict[str, int]
    duration_s: float
    num_input_tokens: int
    num_output_tokens: int
    mean_in_flight: float
    max_in_flight: int
    offered_requests_per_s: float | None
    achieved_requests_per_s: float | None
    is_limited_by_concurrency: bool
    rates: dict[str, float | None]
    times: dict[str, Distribution | None]
    steady_state: SteadyState | None
    objectives: tuple[Outcome, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the metrics for `summary.json`, with the rates and times at the top level."""
        figures: dict[str, Any] = {}
        for name, value in asdict(self).items():
            figures |= value if name in ("rates", "times") else {name: value}
        return figures


def summarize(
    records: Sequence[RequestRecord],
    load: Load,
    *,
    streamed: bool,
    objectives: Sequence[Objective] = (),
) -> Summary:
    """Compute the metrics of `records`.

    If `streamed` is false, the metrics that require streaming are `None`.
    """
    counted = sorted((r for r in records if not r.is_ramp), key=lambda record: record.run)
    run = completed_part(counted, objectives, streamed=streamed)
    completed, duration_s = run.records, run.duration_s
    failures = _count_failures(counted)
    interrupted = sum(record.is_interrupted for record in counted)
    num_held = sum(record.held_s > 0 for record in counted)
    return Summary(
        num_requests=len(counted),
        num_completed=len(completed),
        num_failed=len(counted) - len(completed) - interrupted,
        num_interrupted=interrupted,
        num_rejected=failures.get(REJECTED, 0),
        num_timed_out=failures.get(TIMED_OUT, 0),
        num_cancelled=failures.get("cancelled", 0),
        num_ramp=len(records) - len(counted),
        num_held=num_held,
        failures=failures,
        duration_s=duration_s,
        num_input_tokens=sum(record.num_input_tokens for record in completed),
        num_output_tokens=sum(record.num_output_tokens for record in completed),
        mean_in_flight=per_s(sum(r.end_s - r.sent_s for r in counted), duration_s),
        max_in_flight=max_in_flight(counted),
        offered_requests_per_s=_rate_of(counted, load, lambda record: record.due_s),
        achieved_requests_per_s=_rate_of(counted, load, lambda record: record.sent_s),
        is_limited_by_concurrency=num_held > _HELD_FRACTION * len(counted),
        rates={rate.key: rate.read(run) for rate in RATES},
        times={time.key: _distribute_metric(time, counted, streamed) for time in TIMES},
        steady_state=find_steady_state(completed, load),
        objectives=tuple(
            judge(each, judged_ms(each.time_metric, [counted])) for each in objectives
        ),
    )


def completed_part(
    records: Sequence[RequestRecord], objectives: Sequence[Objective], *, streamed: bool
) -> Completed:
    """Return the completed requests in `records`, as input for the rate metrics."""
    return Completed(
        [record for record in records if record.is_completed],
        span_s(records),
        streamed,
        partial(is_good, objectives=objectives) if objectives else None,
    )


def _distribute_metric(
    metric: TimeMetric, records: Sequence[RequestRecord], streamed: bool
) -> Distribution | None:
    sample = metric.sample_s(records, streamed=streamed)
    sizes = None if metric.sampled == "requests" else [len(times_s) for times_s in sample]
    return distribute(chain.from_iterable(sample), sizes)


def is_good(record: RequestRecord, objectives: Iterable[Objective]) -> bool:
    """Return whether the times of a completed request meet every objective.

    A request has a single TTFT, TPOT, latency and queue time, so the objective's statistic is
    ignored for these metrics. For ITL objectives, the statistic is computed over the request's
    gaps.

    If a response is too short to have a TTFT, TPOT or ITL, the request meets all objectives on that
    metric. If the server did not report the queue time, the request misses all queue time
    objectives.
    """
    return all(_is_within(each, each.time_metric.read(record)) for each in objectives)


def _is_within(objective: Objective, times_s: Sequence[float]) -> bool:
    if not times_s:
        return objective.time_metric.needs != "--server-times"
    return statistic(times_s, objective.percent) * 1e3 <= objective.limit_ms


def judged_ms(
    metric: TimeMetric, runs: Sequence[Sequence[RequestRecord]]
) -> list[list[list[float]]]:
    """Return the samples for checking objectives, in milliseconds, grouped by run and request.

    A failed request has as many samples as an average completed request, but at least one. Each of
    these samples is `NEVER_MS`. Interrupted requests are excluded.
    """
    completed = [record for run in runs for record in run if record.is_completed]
    num = sum(len(metric.read(record)) for record in completed)
    never = [NEVER_MS] * max(round(num / max(len(completed), 1)), 1)
    return [
        [
            [time_s * 1e3 for time_s in metric.read(record)] if record.is_completed else never
            for record in run
            if not record.is_interrupted
        ]
        for run in runs
    ]


def judge(objective: Objective, times_ms: Iterable[Iterable[Sequence[float]]]) -> Outcome:
    """Check an objective against the samples that `judged_ms` returned."""
    sample = list(chain.from_iterable(chain.from_iterable(times_ms)))
    measured_ms = finite(statistic(sample, objective.percent)) if sample else None
    is_met = measured_ms is not None and measured_ms <= objective.limit_ms
    return Outcome(str(objective), objective.limit_ms, measured_ms, is_met)


def finite(value_ms: float) -> float | None:
    """Return the statistic `value_ms`, or `None` if failed requests make the statistic infinite."""
    return None if value_ms >= _MAX_FINITE_MS else value_ms


def span_s(records: Iterable[RequestRecord]) -> float:
    """Return the total duration of the runs in `records`, in seconds.

    The duration of a run is the time from its first due time until its last request ends.
    """
    return math.fsum(
        max(record.end_s for record in run) - min(record.due_s for record in run)
        for run in _runs(records).values()
    )


def distribute(
    times_s: Iterable[float], group_sizes: Sequence[int] | None = None
) -> Distribution | None:
    """Return the distribution of `times_s` in milliseconds, or `None` if the sample is empty.

    `group_sizes` contains the number of consecutive times in each group; for example, the gaps
    between one request's tokens form a group. The confidence intervals assume that the groups are
    independent of each other. Without `group_sizes`, each time is its own group.
    """
    sample = np.fromiter(times_s, np.float64) * 1e3
    if not sample.size:
        return None
    sizes = [size for size in group_sizes or () if size]
    ranked, percents = np.sort(sample), tuple(PERCENTS.values())
    drawn = (
        resample(np.split(sample, np.cumsum(sizes)[:-1]), percents)
        if sizes
        else resample_singles(ranked, percents)
    )
    p50, p75, p90, p95, p99, p999 = (
        float(ranked[rank(percent, ranked.size) - 1]) for percent in percents
    )
    return Distribution(
        num_samples=sample.size,
        mean_ms=float(sample.mean()),
        stdev_ms=float(sample.std()),
        min_ms=float(ranked[0]),
        p50_ms=p50,
        p75_ms=p75,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=float(ranked[-1]),
        intervals_ms={
            name: middle(values)
            for name, values in zip(PERCENTS, drawn, strict=True)
            if values is not None
        },
    )


def max_in_flight(records: Iterable[RequestRecord]) -> int:
    """Return the highest number of concurrent requests in any run."""
    most = 0
    for run in _runs(records).values():
        starts = [(record.sent_s, 1) for record in run]
        ends = [(record.end_s, -1) for record in run]
        # If one request ends exactly when another starts, sort the end first. Otherwise, both
        # requests would be counted as in flight.
        in_flight = np.cumsum([change for _, change in sorted(starts + ends)])
        most = max(most, int(in_flight.max()))
    return most


def find_steady_state(completed: Sequence[RequestRecord], load: Load) -> SteadyState | None:
    """Find the end of a run's initial transient with the MSER-5 method.

    MSER-5 orders the request latencies by due time and averages each batch of five. It then removes
    batches from the start to minimize the standard error of the remaining mean. If more than half
    of the batches would be removed, the run is not steady. Return `None` if there are fewer than 50
    completed requests, if all requests are due at the start, or if there are several runs.

    Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", Simulation 69 (1997).
    """
    records = sorted(completed, key=lambda record: record.due_s)
    num_batches = len(records) // _BATCH
    if isinstance(load, AllAtOnce) or num_batches < _MIN_BATCHES or len(_runs(records)) > 1:
        return None
    latencies = np.array([record.end_s - record.due_s for record in records])
    cut = _mser(latencies[: num_batches * _BATCH].reshape(num_batches, _BATCH).mean(axis=1))
    num_before = cut * _BATCH
    if cut > num_batches / 2:
        return SteadyState(False, num_before)
    from_s, to_s = records[num_before].due_s, records[-1].due_s
    ended = [record for record in records if from_s <= record.end_s <= to_s]
    return SteadyState(
        True,
        num_before,
        from_s,
        per_s(len(ended), to_s - from_s),
        per_s(sum(record.num_output_tokens for record in ended), to_s - from_s),
        statistic(latencies[num_before:], 50) * 1e3,
    )


def _mser(values: NDArray[np.float64]) -> int:
    """Return how many values MSER-5 removes from the start. At least five values remain."""
    centred = values - values.mean()
    kept = np.arange(values.size, 0, -1)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors = (squares - sums**2 / kept) / kept**2
    return int(np.argmin(errors[: max(values.size - 4, 1)]))


def _runs(records: Iterable[RequestRecord]) -> dict[int, list[RequestRecord]]:
    runs: dict[int, list[RequestRecord]] = {}
    for record in records:
        runs.setdefault(record.run, []).append(record)
    return runs


def _rate_of(
    records: Sequence[RequestRecord], load: Load, time_of: Callable[[RequestRecord], float]
) -> float | None:
    """Return the mean request rate, based on the time that `time_of` returns for each request.

    The rate is the number of gaps divided by their total length, because n requests have n - 1 gaps
    between their times. Return `None` if the load has neither a rate nor recorded times, or if
    there are no gaps.
    """
    if isinstance(load, AllAtOnce | AtConcurrency):
        return None
    times = [[time_of(record) for record in run] for run in _runs(records).values()]
    num_gaps = sum(len(each) - 1 for each in times)
    return per_s(num_gaps, sum(max(each) - min(each) for each in times)) if num_gaps else None


def _count_failures(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Return the number of failed requests of each kind, with the most frequent kind first.

    Interrupted requests are not counted.
    """
    kinds = Counter(r.error.kind for r in records if r.error and not r.is_interrupted)
    return dict(kinds.most_common())
