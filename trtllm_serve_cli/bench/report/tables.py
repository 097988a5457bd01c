"""Format a result as table rows and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, AtTimes, Load
from trtllm_serve_cli.bench.model.metrics import (
    GOODPUT,
    LATENCY,
    MAIN_TIMES,
    OUTPUT_TOKEN_RATE,
    RATES,
    REQUEST_RATE,
    TIMES,
)
from trtllm_serve_cli.bench.report import result_reader
from trtllm_serve_cli.bench.report.result_json import upstream_rows
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
from trtllm_serve_cli.bench.run.sampling import ServerSample
from trtllm_serve_cli.bench.run.search import Probe, SearchResult
from trtllm_serve_cli.bench.stats.statistics import Distribution, Summary
from trtllm_serve_cli.bench.workloads.dataset import Dataset
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn

TIME_COLUMNS = ("Time (ms)", "Mean", "Min", "P50", "P90", "P95", "P99", "P99.9", "Max")
_RATE_COLUMNS = (REQUEST_RATE.label, OUTPUT_TOKEN_RATE.label)
TARGET_COLUMNS = ("Target", *_RATE_COLUMNS, f"{LATENCY.label} p50 (ms)", "p99 (ms)", "Failed")
OBJECTIVE_COLUMNS = ("Objective", "Measured (ms)", "Met")


def stat_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the rows of tensorrtllm_backend's table, with additional rates and request counts.

    If the load has a rate or recorded times, the last rows are the offered, achieved and completed
    rates. If the concurrency cap limited the run, a row with the number of delayed requests
    replaces these rows.
    """
    rows = [(name, _number(value)) for name, value in upstream_rows(summary).items()]
    own = (rate for rate in RATES if rate.label and not rate.upstream)
    values = ((rate.label, summary.rates[rate.key]) for rate in own)
    rows += [(label, _number(value)) for label, value in values if value is not None]
    rows += [
        ("Completed requests", str(summary.num_completed)),
        ("Failed requests", str(summary.num_failed)),
    ]
    rows += [(f"  {kind}", str(count)) for kind, count in summary.failures.items()]
    if summary.num_interrupted:
        rows.append(("Interrupted requests", str(summary.num_interrupted)))
    return rows + _rate_rows(summary)


def time_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return one row for each measured time, with the columns in `TIME_COLUMNS`."""
    distributions = ((metric.label, summary.times[metric.key]) for metric in TIMES)
    return [(label, *_time_cells(times)) for label, times in distributions if times]


def target_rows(result: BenchmarkResult) -> list[tuple[str, ...]]:
    """Return one row for each target, with the columns in `TARGET_COLUMNS`.

    The list is empty if there is only one target.
    """
    if len(result.models) < 2:
        return []
    rows: list[tuple[str, ...]] = []
    for target, model in enumerate(result.models):
        summary = result.summary_of(target=target)
        latency = summary.times[LATENCY.key]
        rows.append(
            (
                f"{model.name} at {model.address}",
                *map(_number, _throughput(summary)),
                _three_digits(latency.p50_ms) if latency else "-",
                _three_digits(latency.p99_ms) if latency else "-",
                str(summary.num_failed),
            )
        )
    return rows


def objective_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return one row for each objective, with the columns in `OBJECTIVE_COLUMNS`."""
    return [
        (
            outcome.objective,
            _time_text(outcome.measured_ms),
            "yes" if outcome.is_met else "no",
        )
        for outcome in summary.objectives
    ]


def run_rows(result: BenchmarkResult) -> list[tuple[str, ...]]:
    """Return one row for each run, with the columns in `RUN_COLUMNS`.

    The list is empty if there is only one run.
    """
    if len(result.runs) < 2:
        return []
    summaries = [result.summary_of(run=number) for number in range(len(result.runs))]
    return [
        (
            str(number),
            *map(_number, _throughput(summary)),
            *(_p50_p99(summary.times[metric.key])[0] for metric in MAIN_TIMES),
        )
        for number, summary in enumerate(summaries)
    ]


RUN_COLUMNS = (
    "Run",
    *_RATE_COLUMNS,
    *(f"{metric.label} p50{'' if number else ' (ms)'}" for number, metric in enumerate(MAIN_TIMES)),
)


def describe_amount(settings: BenchmarkSettings) -> str:
    """Describe the number of runs and the size of each run, in requests or seconds."""
    is_conversation = isinstance(settings.workload, MultiTurn)
    what = "conversation" if is_conversation else "request"
    times = f", {settings.repeat} times" if settings.repeat > 1 else ""
    if settings.duration_s is not None:
        return f"{settings.duration_s:g} s of {what}s{times}"
    return f"{settings.num_requests} {what}{'s' * (settings.num_requests != 1)}{times}"


# Omit the last metric's p99, because rows with a long load description could otherwise exceed 80
# columns.
POINT_COLUMNS = (
    "Load",
    "Req/s",
    "Tok/s",
    *[name for metric in MAIN_TIMES for name in (metric.label, "p99")][:-1],
)
_LABELS = [metric.label for metric in MAIN_TIMES]
POINT_LEGEND = (
    f"{', '.join(_LABELS[:-1])} and {_LABELS[-1]}: medians in ms. p99: of the metric to its left."
)


def point_rows(results: Sequence[BenchmarkResult]) -> list[tuple[str, ...]]:
    """Return one row for each point of a sweep, with the columns in `POINT_COLUMNS`.

    Times are in milliseconds.
    """
    return [
        (point, *_point_cells(result.summary))
        for point, result in zip(_describe_points(results), results, strict=True)
    ]


POINT_OBJECTIVE_COLUMNS = ("Load", GOODPUT.label, *OBJECTIVE_COLUMNS)


def point_objective_rows(results: Sequence[BenchmarkResult]) -> list[tuple[str, ...]]:
    """Return one row for each objective at each point of a sweep.

    The rows have the columns in `POINT_OBJECTIVE_COLUMNS`. The list is empty if the sweep has no
    objectives.
    """
    return [
        (
            point if number == 0 else "",
            _number(result.summary.rates[GOODPUT.key] or 0.0) if number == 0 else "",
            *cells,
        )
        for point, result in zip(_describe_points(results), results, strict=True)
        for number, cells in enumerate(objective_rows(result.summary))
    ]


def _describe_points(results: Sequence[BenchmarkResult]) -> list[str]:
    """Return the load of each point, with the model names if the points have different models.

    The names are those of the imported models. If they do not distinguish the points, the names of
    the served models are added.
    """
    imported = [
        ", ".join(dict.fromkeys(model.imported_model or model.name for model in result.models))
        for result in results
    ]
    served = [
        result_reader.describe_models(model.to_json() for model in result.models)
        for result in results
    ]
    names = imported if len(set(imported)) == len(set(served)) else served
    loads = [result_reader.describe_load(result.settings.to_json()["load"]) for result in results]
    if len(set(names)) == 1:
        return loads
    return [f"{name}: {load}" for name, load in zip(names, loads, strict=True)]


PROBE_COLUMNS = ("Rate (1/s)", "Runs", "Objective", "Measured (ms)", "95 % interval", "")


def probe_rows(probes: Sequence[Probe]) -> list[tuple[str, ...]]:
    """Return one row for each objective at each rate of a search, sorted by rate.

    The rows have the columns in `PROBE_COLUMNS`.
    """
    return [
        (
            f"{probe.rate:g}" if number == 0 else "",
            str(probe.num_runs) if number == 0 else "",
            each.objective,
            _time_text(each.measured_ms),
            " … ".join(_time_text(end) for end in each.interval_ms) if each.interval_ms else "-",
            ("met" if each.is_met else "missed") + ("" if each.is_sure else "?"),
        )
        for probe in sorted(probes, key=lambda probe: probe.rate)
        for number, each in enumerate(probe.measured)
    ]


def search_summary(result: SearchResult) -> list[str]:
    """Return a list with one sentence about the highest rate that met every objective.

    The list is empty if no measured rate met every objective.
    """
    if result.rate is None:
        return []
    low, high = result.interval
    sure = [] if low is None else [f"{low:g}/s meets every objective"]
    sure += [] if high is None else [f"{high:g}/s misses an objective"]
    met = f"Highest rate that met every objective: {result.rate:g} requests/s"
    if result.ending == "all_met":
        met = f"Every measured rate up to {result.rate:g} requests/s, the highest in the search, "
        met += "met every objective"
    return [f"{met} (with 95 % confidence: {', '.join(sure) or 'no rate is certain'})."]


def _time_text(value_ms: float | None) -> str:
    return "∞" if value_ms is None else _three_digits(value_ms)


def _point_cells(summary: Summary) -> list[str]:
    cells = [cell for metric in MAIN_TIMES for cell in _p50_p99(summary.times[metric.key])]
    return [*map(_three_digits, _throughput(summary)), *cells[:-1]]


def _p50_p99(times: Distribution | None) -> tuple[str, str]:
    return (_three_digits(times.p50_ms), _three_digits(times.p99_ms)) if times else ("-", "-")


def describe_load(load: Load) -> str:
    """Return a short description of the load for a table title."""
    match load:
        case AllAtOnce():
            return "in one burst"
        case AtConcurrency(concurrency):
            return f"{concurrency} in flight" + _ramp(load.ramp_s)
        case AtTimes():
            speed = "" if load.speed == 1 else f", {load.speed:g}x speed"
            return "at the recorded times" + speed + _cap(load.concurrency)
        case AtRate(rate, arrival, burstiness):
            shape = f", burstiness {burstiness:g}" if arrival == "gamma" else ""
            return f"{rate:g} requests/s, {arrival}{shape}{_cap(load.concurrency)}" + _ramp(
                load.ramp_s
            )


def remarks(result: BenchmarkResult) -> list[str]:
    """Return sentences that help users interpret the results."""
    summary = result.summary
    notes = []
    workload = result.settings.workload
    if isinstance(workload, Identity):
        rows_per_s = _throughput(summary)[0] * workload.batch_size
        notes.append(
            f"The server processed {rows_per_s:.2f} prompts/s "
            f"({workload.batch_size} prompts per request)."
        )
    if isinstance(workload, Dataset) and (skipped := workload.num_left_out):
        notes.append(
            f"{skipped} of {skipped + workload.num_available} data set entries were skipped, "
            "because their prompts are empty or too long, or their conversations have no answer."
        )
    if summary.is_limited_by_concurrency:
        notes.append(
            f"The concurrency cap delayed {summary.num_held} of {summary.num_requests} requests, "
            "so the benchmark did not reach the requested rate. Latencies include the delay."
        )
    if summary.steady_state is not None and not summary.steady_state.is_reached:
        notes.append("The latencies did not stabilize. Use a longer run or a lower load.")
    if summary.num_ramp:
        notes.append(f"Ramp requests ({summary.num_ramp}) are excluded from the results.")
    measured = (record for record in result.records if not record.is_ramp)
    num_empty = sum(record.is_completed and not record.chunk_s for record in measured)
    if num_empty:
        notes.append(
            f"The model ended {num_empty} of {summary.num_completed} responses without generating "
            "a token. These requests count as completed, but have no TTFT."
        )
    if result.token_counts != "server":
        counted = {
            "re-tokenised": "the client counted the tokens with its tokenizer",
            "responses": "each response with text was counted as one token",
        }[result.token_counts]
        notes.append(f"The server does not report output token counts, so {counted}.")
    if summary.num_completed and not summary.num_input_tokens:
        notes.append("The server does not report input token counts, so they are unknown.")
    if result.settings.input_kind == "tokens" and not all(m.vocab_size for m in result.models):
        notes.append(
            f"The vocabulary size is unknown, so random token ids are below {result.vocab_size}."
        )
    return [*notes, *_sampling_failures(result)]


def _sampling_failures(result: BenchmarkResult) -> list[str]:
    """Return a sentence for each target whose metrics could never be sampled."""
    samples: dict[int, list[ServerSample]] = {}
    for sample in chain.from_iterable(run.samples for run in result.runs):
        samples.setdefault(sample.target, []).append(sample)
    return [
        f"The metrics of {result.models[target].address} were not sampled: {own[-1].error}"
        for target, own in samples.items()
        if all(sample.state is None for sample in own)
    ]


def _rate_rows(summary: Summary) -> list[tuple[str, str]]:
    if not summary.offered_requests_per_s or not summary.achieved_requests_per_s:
        return []
    if summary.is_limited_by_concurrency:
        return [("Delayed by the concurrency cap", str(summary.num_held))]
    return [
        ("Offered rate (requests/s)", _number(summary.offered_requests_per_s)),
        ("Achieved rate (requests/s)", _number(summary.achieved_requests_per_s)),
        ("Completed rate (requests/s)", _number(_throughput(summary)[0])),
    ]


def _throughput(summary: Summary) -> tuple[float, float]:
    """Return the completed requests per second and the output tokens per second."""
    return (
        summary.rates[REQUEST_RATE.key] or 0.0,
        summary.rates[OUTPUT_TOKEN_RATE.key] or 0.0,
    )


def _cap(concurrency: int | None) -> str:
    return "" if concurrency is None else f", at most {concurrency} in flight"


def _ramp(ramp_s: float) -> str:
    return f", after a ramp of {ramp_s:g} s" if ramp_s else ""


def _time_cells(times: Distribution) -> tuple[str, ...]:
    values = (times.mean_ms, times.min_ms, times.p50_ms, times.p90_ms, times.p95_ms)
    rest = (times.p99_ms, times.p999_ms, times.max_ms)
    return tuple(_three_digits(value) for value in (*values, *rest))


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"
