"""Build the charts for one result, or for a comparison of several results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from trtllm_serve_cli.bench.model.metrics import (
    MAIN_TIMES,
    OUTPUT_TOKEN_RATE,
    REQUEST_RATE,
    USER_TOKEN_RATE,
    RateMetric,
    TimeMetric,
)
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.charts import Axis, Chart, Limit, Point, Series
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.report.scales import Scale, fit_scale, write_number
from trtllm_serve_cli.bench.report.timeline import (
    QUANTITIES,
    count_held,
    count_in_flight,
    server_series,
    thin,
)
from trtllm_serve_cli.bench.stats.confidence import rank

_MAX_POINTS = 160
_MAX_DOTS = 900
_MAX_BARS = 36
_WIDE = 1240
_PERCENT = Scale(0, 100)
# Fractions at which cumulative distributions have additional points, to show the tail in detail.
_TAIL = (0.9925, 0.995, 0.9975, 0.999, 0.9995, 0.9999)


def sample_ms(result: StoredResult, metric: TimeMetric) -> list[float]:
    """Return a metric's samples in milliseconds, without ramp requests."""
    sample = metric.sample_s(result.counted, streamed=result.streamed)
    return [time_s * 1e3 for times_s in sample for time_s in times_s]


def cdf_chart(results: Sequence[StoredResult], metric: TimeMetric) -> Chart | None:
    """Return a chart of a metric's cumulative distribution, with one line per result.

    Return `None` if no result contains the metric.
    """
    samples = [(result, sorted(sample_ms(result, metric))) for result in results]
    lines = [
        Series(distinct_name(result, results), _cdf(sample), colour=colour)
        for colour, (result, sample) in enumerate(samples)
        if sample
    ]
    if not lines:
        return None
    x = fit_scale((p[0] for line in lines for p in line.points), from_zero=True, may_be_log=True)
    if len(results) == 1:
        lines = [replace(lines[0], label="")]
    return Chart(
        f"{metric.title}: cumulative distribution of {metric.sampled}",
        Axis(f"{metric.title} (ms)", x),
        Axis("Share (%)", _PERCENT),
        lines,
        limits=list(dict.fromkeys(limit for each in results for limit in _limits(each, metric))),
    )


def histogram_chart(result: StoredResult, metric: TimeMetric) -> Chart | None:
    """Return a histogram of a metric as a chart, or `None` if the metric was not measured."""
    sample = np.asarray(sample_ms(result, metric))
    if not sample.size:
        return None
    x = fit_scale(sample.tolist(), may_be_log=True)
    num_bars = int(min(max(np.sqrt(sample.size), 8), _MAX_BARS))
    spaced = np.geomspace if x.is_log else np.linspace
    edges = spaced(x.low, x.high, num_bars + 1)
    counts, _ = np.histogram(np.maximum(sample, x.low), edges)
    shares = 100 * counts / sample.size
    points = list(zip(edges.tolist(), [*shares.tolist(), 0.0], strict=True))
    return Chart(
        f"{metric.title}: distribution",
        Axis(f"{metric.title} (ms)", x),
        Axis(f"Share of {metric.sampled} (%)", fit_scale(shares.tolist(), from_zero=True), 5),
        [Series("", points, "bars")],
        limits=_limits(result, metric),
    )


def timeline_charts(result: StoredResult, run: int = 0) -> list[tuple[Chart, Chart]]:
    """Return the timeline panels for one run, with the client's panels before the server's panels.

    Each panel is a pair with a narrow and a wide version of the same chart. The list is empty if
    the run has no records.
    """
    records = [record for record in result.records if record.run == run]
    if not records:
        return []
    end_s = max(record.end_s for record in records)
    x = Axis("Time since start (s)", Scale(0.0, max(end_s, 1e-3)), 10)
    several = len(result.summary["targets"]) > 1
    panels = [_in_flight_panel(records, x), _latency_panel(records, x)]
    measured = server_series(result.samples, run)
    for quantity, (title, unit) in QUANTITIES.items():
        lines = [
            Series(f"server {each.target}" if several else "", each.points, "line", colour)
            for colour, each in enumerate(each for each in measured if each.quantity == quantity)
        ]
        if lines:
            values = (value for line in lines for _, value in line.points)
            y = _PERCENT if unit.endswith("(%)") else fit_scale(values, from_zero=True)
            panels.append(Chart(title, x, Axis(unit, y, 4), lines, height=150))
    return [(panel, replace(panel, width=_WIDE)) for panel in panels]


def sweep_charts(results: Sequence[StoredResult]) -> list[Chart]:
    """Return charts that compare the latency and throughput of the results.

    Each point represents one result. A latency chart has lines for the median, p95 and p99 of each
    sweep and model. Results in the same folder belong to the same sweep. Latencies that require
    streaming are plotted against tokens/s, and request latencies are plotted against requests/s.
    The last chart shows the total throughput against the throughput per user. Charts without a line
    of at least two points are omitted.
    """
    charts = [
        _sweep_chart(
            results, OUTPUT_TOKEN_RATE if metric.needs == "--stream" else REQUEST_RATE, metric
        )
        for metric in MAIN_TIMES
    ]
    return [chart for chart in (*charts, _per_user_chart(results)) if chart is not None]


def _sweep_chart(
    results: Sequence[StoredResult], rate: RateMetric, metric: TimeMetric
) -> Chart | None:
    measured = [result for result in results if result.figures.get(metric.key)]
    lines: list[Series] = []
    for name, own in _group_by_sweep(measured).items():
        for percent, label in (("p50_ms", "median"), ("p95_ms", "p95"), ("p99_ms", "p99")):
            lines.append(
                Series(
                    f"{name}, {label}" if name else label,
                    [(r.figures[rate.key], r.figures[metric.key][percent]) for r in own],
                    colour=len(lines),
                    names=[result.short_load for result in own],
                )
            )
    return _points_chart(
        f"{metric.title} vs. throughput",
        rate.title,
        f"{metric.title} (ms)",
        lines,
    )


def _per_user_chart(results: Sequence[StoredResult]) -> Chart | None:
    measured = [result for result in results if result.figures[USER_TOKEN_RATE.key]]
    lines: list[Series] = []
    for name, own in _group_by_sweep(measured).items():
        points = [(r.figures[USER_TOKEN_RATE.key], r.figures[OUTPUT_TOKEN_RATE.key]) for r in own]
        names = [result.short_load for result in own]
        lines.append(Series(name or own[0].models, points, colour=len(lines), names=names))
    return _points_chart(
        "Throughput vs. speed per user",
        USER_TOKEN_RATE.title,
        f"{OUTPUT_TOKEN_RATE.title}, total",
        lines,
    )


def _group_by_sweep(results: Sequence[StoredResult]) -> dict[str, list[StoredResult]]:
    """Group the results by their models and sweep.

    The keys are unique names of the groups. Names omit the models or the sweep if it is the same
    for all groups. Results that are alone in their folder form one sweep.
    """
    num_siblings = Counter(result.folder.parent for result in results)
    groups: dict[tuple[str, str], list[StoredResult]] = {}
    for result in results:
        parent = result.folder.parent
        sweep = str(parent) if num_siblings[parent] > 1 else ""
        groups.setdefault((result.models, sweep), []).append(result)
    varies = [len(set(parts)) > 1 for parts in zip(*groups, strict=True)]
    return {", ".join(filter(None, compress(key, varies))): own for key, own in groups.items()}


def _points_chart(title: str, x: str, y: str, lines: Sequence[Series]) -> Chart | None:
    if not lines or all(len(line.points) < 2 for line in lines):
        return None
    points = [point for line in lines for point in line.points]
    return Chart(
        title,
        Axis(x, fit_scale((point[0] for point in points), from_zero=True)),
        # Leave space for the label above the highest point.
        Axis(y, fit_scale((point[1] * 1.1 for point in points), from_zero=True, may_be_log=True)),
        # Put the slowest percentile first, because only the first line's points have labels. Above
        # the highest line, the labels do not cover the other lines.
        list(reversed(lines)),
    )


def _in_flight_panel(records: Sequence[RequestRecord], x: Axis) -> Chart:
    steps = thin(count_in_flight(records), _MAX_POINTS * 2)
    held = count_held(records)
    lines = [Series("", steps, "area")]
    most = max((value for _, value in steps), default=0.0)
    if max((value for _, value in held), default=0.0) > 0.05 * most:
        late = Series("due, not yet sent", thin(held, _MAX_POINTS * 2), "steps", 1)
        lines = [replace(lines[0], label="in flight"), late]
    values = (value for line in lines for _, value in line.points)
    y = Axis("Requests", fit_scale(values, from_zero=True), 4)
    return Chart("Requests in flight", x, y, lines, height=180)


def _latency_panel(records: Sequence[RequestRecord], x: Axis) -> Chart:
    """Return a chart with a dot for each request at its due time.

    If there are too many requests, the chart shows only every n-th request.
    """
    ordered = sorted(records, key=lambda record: record.due_s)
    every = max(len(ordered) // _MAX_DOTS, 1)
    good = [(r.due_s, (r.end_s - r.due_s) * 1e3) for r in ordered if r.is_completed][::every]
    bad = [(r.due_s, (r.end_s - r.due_s) * 1e3) for r in ordered if not r.is_completed]
    lines = [Series("completed" if bad else "", good, "dots")]
    if bad:
        some = bad[:: max(len(bad) // _MAX_DOTS, 1)]
        lines.append(Series("failed or interrupted", some, "dots", 3))
    values = (value for line in lines for _, value in line.points)
    return Chart(
        "Latency of each request, by due time",
        x,
        Axis("Request latency (ms)", fit_scale(values, from_zero=True), 4),
        lines,
        height=180,
        note=f"Only 1 in {write_number(every)} completed requests is shown." if every > 1 else "",
    )


def distinct_name(result: StoredResult, others: Sequence[StoredResult]) -> str:
    """Return a short name for `result` that is unique among `others`, which include `result`.

    The candidates are the load, the models, the models with the load, the folder name, and the path
    of the folder. Return the first candidate that is unique for every result.
    """
    names: tuple[Callable[[StoredResult], str], ...] = (
        lambda each: each.load,
        lambda each: each.models,
        lambda each: f"{each.models}, {each.load}",
        lambda each: each.name,
    )
    for name in names:
        if len({name(each) for each in others}) == len(others):
            return name(result)
    return str(result.folder)


def _cdf(ranked: Sequence[float]) -> list[Point]:
    """Return points on the cumulative distribution of the sorted values.

    The points use the nearest rank, like the percentiles in tables.
    """
    shares = [step / _MAX_POINTS for step in range(_MAX_POINTS)]
    shares_shown = sorted(
        {*shares, *(share for share in _TAIL if share < 1 - 1 / len(ranked)), 1.0}
    )
    places = dict.fromkeys(rank(100 * share, len(ranked)) for share in shares_shown)
    points = [(ranked[place - 1], 100 * place / len(ranked)) for place in places]
    return [(ranked[0], 0.0), *points]


def _limits(result: StoredResult, metric: TimeMetric) -> list[Limit]:
    """Return the result's objectives for a metric as limits on the x axis."""
    outcomes: Sequence[dict[str, Any]] = result.figures.get("objectives") or ()
    return [
        Limit(outcome["objective"], outcome["limit_ms"])
        for outcome in outcomes
        if outcome["objective"].partition(":")[0] == metric.name
    ]
