"""One HTML page of one result or of several, whole in itself: it opens without a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from trtllm_serve_cli import __version__
from trtllm_serve_cli.bench.model.metrics import (
    GOODPUT,
    MAIN_TIMES,
    OUTPUT_TOKEN_RATE,
    REQUEST_RATE,
    TIMES,
    USER_TOKEN_RATE,
)
from trtllm_serve_cli.bench.report.charts import NUM_COLOURS, Chart, render_figure
from trtllm_serve_cli.bench.report.figures import (
    cdf_chart,
    distinct_name,
    histogram_chart,
    sweep_charts,
    timeline_charts,
)
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.rendering import render

PAGE = "report.html"
_MAX_TIMELINES = 12
_STATISTICS = {
    "Mean": "mean_ms",
    "Min": "min_ms",
    "P50": "p50_ms",
    "P90": "p90_ms",
    "P95": "p95_ms",
    "P99": "p99_ms",
    "P99.9": "p999_ms",
    "Max": "max_ms",
}
_SWEEP_COLUMNS = (
    "Load",
    "Model",
    REQUEST_RATE.label,
    OUTPUT_TOKEN_RATE.label,
    *(name for metric in MAIN_TIMES for name in (f"{metric.label} p50 (ms)", "p99 (ms)")),
    "Failed",
)


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    rows: Sequence[Sequence[str]]
    columns: Sequence[str] = ()
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """`charts` are HTML; panels stand below each other over the same time."""

    title: str
    charts: Sequence[Markup] = ()
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()
    are_panels: bool = False


def render_page(results: Sequence[StoredResult]) -> str:
    """The page of at least one result; several are the points of a sweep."""
    first = results[0]
    is_sweep = len(results) > 1
    return render(
        "report/report.html.j2",
        title=_title(results),
        subtitle=_subtitle(results),
        banners=[words for result in results for words in _banners(result, results)],
        tiles=[] if is_sweep else list(_tiles(first)),
        sections=_sweep_sections(results) if is_sweep else _sections(first),
        num_colours=NUM_COLOURS,
        footer=f"Written by tllm {__version__}. Every figure is defined in docs/metrics.md. "
        "Times count from when a request was due.",
    )


def _title(results: Sequence[StoredResult]) -> str:
    models = ", ".join(dict.fromkeys(result.models for result in results))
    benchmark = ", ".join(dict.fromkeys(str(result.summary["benchmark"]) for result in results))
    return f"{benchmark} on {models}"


def _subtitle(results: Sequence[StoredResult]) -> str:
    started = str(results[0].summary["started_at"]).replace("T", " ").replace("+00:00", " UTC")
    if len(results) > 1:
        return f"{len(results)} loads, measured from {started}"
    return f"{results[0].load}, measured at {started}"


def _banners(result: StoredResult, results: Sequence[StoredResult]) -> Iterable[str]:
    """What makes the figures not what they look like."""
    where = f"{distinct_name(result, results)}: " if len(results) > 1 else ""
    if result.summary.get("is_partial"):
        reason = {
            "interrupted": "it was interrupted",
            "server_lost": "the server was lost in the middle",
        }.get(str(result.summary.get("ending")), "it did not come to its end")
        yield f"{where}This benchmark is partial: {reason}."
    for words in result.summary["client"].get("bottlenecks", ()):
        yield f"{where}The client was the bottleneck: {words}."
    failed, total = result.figures["num_failed"], result.figures["num_requests"]
    if failed:
        yield f"{where}{failed} of {total} requests failed; they are in no latency."


def _tiles(result: StoredResult) -> Iterable[Tile]:
    figures = result.figures
    goodput = figures.get(GOODPUT.key)
    yield Tile(
        REQUEST_RATE.title.removesuffix("/s"),
        _format(figures[REQUEST_RATE.key]),
        "/s",
        f"{_format(goodput)}/s met the objectives"
        if goodput is not None
        else f"{figures['num_completed']} of {figures['num_requests']}",
    )
    per_user = figures.get(USER_TOKEN_RATE.key)
    yield Tile(
        OUTPUT_TOKEN_RATE.title.removesuffix("/s"),
        _format(figures[OUTPUT_TOKEN_RATE.key]),
        "/s",
        f"{_format(per_user)}/s for each user" if per_user is not None else "",
    )
    for metric in MAIN_TIMES:
        times = figures.get(metric.key)
        if times:
            note = f"p95 {_format(times['p95_ms'])}, p99 {_format(times['p99_ms'])}"
            yield Tile(f"{metric.heading}, median", _format(times["p50_ms"]), "ms", note)
    mean = f"{figures['mean_in_flight']:.1f} on average"
    yield Tile("In flight, at most", str(figures["max_in_flight"]), "", mean)


def _sections(result: StoredResult) -> list[Section]:
    distributions = [
        chart
        for metric in MAIN_TIMES
        for chart in (cdf_chart([result], metric), histogram_chart(result, metric))
        if chart is not None
    ]
    return [
        Section("Times", tables=[_times_table(result)]),
        Section("Distributions", [_figure(chart) for chart in distributions]),
        *_timelines(result),
        *_outcomes(result),
        _facts(result),
    ]


def _sweep_sections(results: Sequence[StoredResult]) -> list[Section]:
    distributions = [cdf_chart(results, metric) for metric in MAIN_TIMES]
    sections = [
        Section("Throughput against latency", [_figure(chart) for chart in sweep_charts(results)]),
        Section("Every load", tables=[Table([_sweep_row(r) for r in results], _SWEEP_COLUMNS)]),
        Section("Distributions", [_figure(chart) for chart in distributions if chart is not None]),
    ]
    for result in results[:_MAX_TIMELINES]:
        sections += _timelines(result, f": {distinct_name(result, results)}")
    return [*sections, _facts(results[0])]


def _timelines(result: StoredResult, suffix: str = "") -> Iterable[Section]:
    """Of every run, as far as there is room on a page."""
    numbers = sorted({record.run for record in result.records})
    for number in numbers[:_MAX_TIMELINES]:
        charts = [_figure(*pair) for pair in timeline_charts(result, number)]
        run = f", run {number}" if len(numbers) > 1 else ""
        remarks = [] if result.samples else ["The server's own metrics were not sampled."]
        yield Section(f"Time line{suffix}{run}", charts, (), remarks, are_panels=True)


def _outcomes(result: StoredResult) -> Iterable[Section]:
    outcomes = result.figures.get("objectives")
    if outcomes:
        rows = [
            (each["objective"], _format(each["measured_ms"]), "met" if each["is_met"] else "missed")
            for each in outcomes
        ]
        yield Section("Objectives", tables=[Table(rows, ("Objective", "Measured (ms)", ""))])
    if result.summary.get("errors"):
        errors = [(each["message"], str(each["num_requests"])) for each in result.summary["errors"]]
        yield Section("Failures", tables=[Table(errors, ("Message", "Requests"))])


def _facts(result: StoredResult) -> Section:
    """What one needs to know to measure the same again."""
    summary = result.summary
    parts = {
        "Configuration": summary["settings"],
        **{
            "Server" if number == 0 else f"Server {number}": {
                name: value for name, value in target.items() if name not in ("inputs", "summary")
            }
            for number, target in enumerate(summary["targets"])
        },
        "Client's machine": summary.get("machine", {}),
        "Versions": summary.get("versions", {}),
        "Client": {name: value for name, value in summary["client"].items() if name != "loop_lag"},
    }
    tables = [Table(list(_flatten(facts)), title=title) for title, facts in parts.items()]
    return Section("Configuration and machine", tables=tables)


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{name}", words


def _times_table(result: StoredResult) -> Table:
    rows = []
    for metric in TIMES:
        times = result.figures.get(metric.key)
        if times:
            cells = (_format(times[statistic]) for statistic in _STATISTICS.values())
            rows.append((metric.label, *cells, str(times["num_samples"])))
    return Table(rows, ("Time (ms)", *_STATISTICS, "Samples"))


def _sweep_row(result: StoredResult) -> tuple[str, ...]:
    figures = result.figures
    times = (figures.get(metric.key) for metric in MAIN_TIMES)
    return (
        result.load,
        result.models,
        _format(figures[REQUEST_RATE.key]),
        _format(figures[OUTPUT_TOKEN_RATE.key]),
        *(
            _format(each[statistic]) if each else "-"
            for each in times
            for statistic in ("p50_ms", "p99_ms")
        ),
        str(figures["num_failed"]),
    )


def _figure(chart: Chart, *variants: Chart) -> Markup:
    return Markup(render_figure(chart, *variants))


def _format(value: float | None) -> str:
    """Three digits that matter, and no more than one reads."""
    if value is None:
        return "-"
    # 0 is added since what rounds to 0 from below would keep its sign.
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{round(value, 3) + 0:.3g}"
