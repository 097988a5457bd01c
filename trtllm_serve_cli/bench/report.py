"""A result as tables, as JSON and as files."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtllm_serve_cli.bench.arrivals import AllAtOnce, AtConcurrency, AtRate, Load
from trtllm_serve_cli.bench.benchmark import BenchmarkResult, BenchmarkSettings
from trtllm_serve_cli.bench.statistics import Distribution, Summary
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import write_aside

SCHEMA_VERSION = 1
TIME_COLUMNS = ("Time (ms)", "Mean", "Min", "P50", "P90", "P95", "P99", "Max")
_TIMES = {
    "Latency": "request_latency",
    "Latency (sent)": "request_latency_from_sent",
    "TTFT": "ttft",
    "TTFT (sent)": "ttft_from_sent",
    "ITL": "itl",
    "TPOT": "tpot",
    "Schedule lag": "schedule_lag",
}


def upstream_rows(summary: Summary) -> dict[str, float]:
    """The rows of upstream's `benchmark_core_model.py`, under its names; only those that exist.

    Our latencies count from when a request was due, upstream's from when it was sent.
    """
    completed = summary.num_completed
    latency = summary.request_latency
    rows: dict[str, float | None] = {
        "Requests/Sec": summary.completed_requests_per_s,
        "OP tokens/sec": summary.output_tokens_per_s,
        "Avg. latency (ms)": latency.mean_ms if latency else None,
        "P99 latency (ms)": latency.p99_ms if latency else None,
        "P90 latency (ms)": latency.p90_ms if latency else None,
        "Avg. IP tokens per request": summary.num_input_tokens / completed if completed else None,
        "Avg. OP tokens per request": summary.num_output_tokens / completed if completed else None,
        "Avg. InFlight requests": summary.mean_in_flight,
        "Total latency (ms)": summary.duration_s * 1e3,
        "Total requests": summary.num_requests,
    }
    return {name: value for name, value in rows.items() if value is not None}


def stat_rows(summary: Summary) -> list[tuple[str, str]]:
    """Upstream's rows, then what it leaves out: how requests ended, and a rated run's rates."""
    rows = [(name, _number(value)) for name, value in upstream_rows(summary).items()]
    rows += [
        ("Completed requests", str(summary.num_completed)),
        ("Failed requests", str(summary.num_failed)),
    ]
    rows += [(f"  {kind}", str(count)) for kind, count in summary.failures.items()]
    if summary.num_interrupted:
        rows.append(("Interrupted requests", str(summary.num_interrupted)))
    if summary.offered_requests_per_s and summary.achieved_requests_per_s:
        rows += [
            ("Offered rate (requests/s)", _number(summary.offered_requests_per_s)),
            ("Achieved rate (requests/s)", _number(summary.achieved_requests_per_s)),
            ("Completed rate (requests/s)", _number(summary.completed_requests_per_s)),
        ]
    return rows


def time_rows(summary: Summary) -> list[tuple[str, ...]]:
    """One row for each distribution that the run has, in the order of `TIME_COLUMNS`."""
    times = {title: getattr(summary, name) for title, name in _TIMES.items()}
    return [(title, *_time_cells(times[title])) for title in times if times[title]]


def describe_load(load: Load) -> str:
    """The load in words, for a table's title."""
    match load:
        case AllAtOnce():
            return "all at once"
        case AtConcurrency(concurrency):
            return f"{concurrency} in flight"
        case AtRate(rate, arrival, burstiness):
            shape = f", burstiness {burstiness:g}" if arrival == "gamma" else ""
            return f"{rate:g} requests/s, {arrival}{shape}"


def to_json(result: BenchmarkResult) -> dict[str, Any]:
    """What `summary.json` and `--json` hold; docs/metrics.md describes it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "token-norm-dist",
        "started_at": result.started_at,
        "is_partial": result.is_partial,
        "settings": _settings_to_json(result.settings),
        "server": asdict(result.model),
        "vocab_size": {
            "used": result.vocab_size,
            "source": "model config" if result.model.vocab_size else "fallback",
        },
        "versions": result.versions,
        "machine": result.machine,
        "summary": asdict(result.summary),
        "upstream": upstream_rows(result.summary),
        "errors": [
            {"message": message, "num_requests": count} for message, count in result.error_messages
        ],
    }


def check_output_folder(folder: Path) -> None:
    """Raises `BadInput` if results written to `folder` would mix with or replace something."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise BadInput(
            f"{folder} is taken.",
            why="it is not an empty folder, and results are never overwritten",
            next_step=f"name another folder: --output {shlex.quote(f'{folder}-2')}",
        )


def write_result(result: BenchmarkResult, folder: Path) -> None:
    """`summary.json` and `requests.jsonl`, a line for each request, in a `folder` that is ours."""
    check_output_folder(folder)
    with write_aside(folder) as aside:
        summary = json.dumps(to_json(result), indent=2, ensure_ascii=False)
        (aside / "summary.json").write_text(summary + "\n", encoding="utf-8")
        with (aside / "requests.jsonl").open("w", encoding="utf-8") as lines:
            for record in result.records:
                lines.write(json.dumps(record.to_json(), ensure_ascii=False) + "\n")


def _settings_to_json(settings: BenchmarkSettings) -> dict[str, Any]:
    kind = {AllAtOnce: "all_at_once", AtRate: "rate", AtConcurrency: "concurrency"}
    return asdict(settings) | {
        "load": {"kind": kind[type(settings.load)], **asdict(settings.load)},
    }


def _time_cells(times: Distribution) -> tuple[str, ...]:
    values = (times.mean_ms, times.min_ms, times.p50_ms, times.p90_ms, times.p95_ms)
    return tuple(_milliseconds(value) for value in (*values, times.p99_ms, times.max_ms))


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"
