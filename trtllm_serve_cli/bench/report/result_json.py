"""Convert a result to JSON and to tensorrtllm_backend's CSV format, and write the result files.

docs/reference/benchmark-metrics.md and result.schema.json describe the formats.
"""

from __future__ import annotations

import csv
import json
import shlex
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trtllm_serve_cli.bench.model.metrics import LATENCY, NAMED_TIMES, RATES
from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
from trtllm_serve_cli.bench.stats.statistics import Summary
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import write_aside

SCHEMA_VERSION = 2
SCHEMA_FILE = Path(__file__).with_name("result.schema.json")
# Maps metric names in the terminal output of tensorrtllm_backend's benchmark to the names in its
# CSV file. Identical names are omitted.
_CSV_NAMES = {
    "Avg. IP tokens per request": "Avg. Input tokens per request",
    "Avg. OP tokens per request": "Avg. Output tokens per request",
}
_STATISTICS_ACROSS_RUNS = ("mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms")


def upstream_rows(summary: Summary) -> dict[str, float]:
    """Return the measured values, keyed by the metric names in tensorrtllm_backend's output.

    Metrics without a measured value are omitted. Latencies are measured from the due time, whereas
    tensorrtllm_backend's benchmark measures them from the send time.
    """
    return {name: value for name, value in _all_upstream_rows(summary).items() if value is not None}


def _all_upstream_rows(summary: Summary) -> dict[str, float | None]:
    return {name: read(summary) for name, read in _UPSTREAM_ROWS.items()}


def _read_rate(summary: Summary, key: str) -> float | None:
    return summary.rates[key]


def _read_latency(summary: Summary, statistic: str) -> float | None:
    latency = summary.times[LATENCY.key]
    return getattr(latency, statistic) if latency else None


def _mean_input_tokens(summary: Summary) -> float | None:
    # Every prompt has tokens, so a sum of 0 means that the server did not count them.
    total, completed = summary.num_input_tokens, summary.num_completed
    return total / completed if total and completed else None


def _mean_output_tokens(summary: Summary) -> float | None:
    completed = summary.num_completed
    return summary.num_output_tokens / completed if completed else None


# Maps metric names in the terminal output of tensorrtllm_backend's benchmark to functions that
# return the measured value, or `None`.
_UPSTREAM_ROWS: Mapping[str, Callable[[Summary], float | None]] = {
    **{rate.upstream: partial(_read_rate, key=rate.key) for rate in RATES if rate.upstream},
    "Avg. latency (ms)": partial(_read_latency, statistic="mean_ms"),
    "P99 latency (ms)": partial(_read_latency, statistic="p99_ms"),
    "P90 latency (ms)": partial(_read_latency, statistic="p90_ms"),
    "Avg. IP tokens per request": _mean_input_tokens,
    "Avg. OP tokens per request": _mean_output_tokens,
    "Avg. InFlight requests": lambda summary: summary.mean_in_flight,
    "Total latency (ms)": lambda summary: summary.duration_s * 1e3,
    "Total requests": lambda summary: summary.num_requests,
}
_CSV_COLUMNS = [_CSV_NAMES.get(name, name) for name in _UPSTREAM_ROWS]
_CSV_HEADER = ",".join(_CSV_COLUMNS)


def csv_row(summary: Summary) -> dict[str, float]:
    """Return the measured values, keyed by the metric names in tensorrtllm_backend's CSV files.

    The values are the same as in `upstream_rows`.
    """
    return {_CSV_NAMES.get(name, name): value for name, value in upstream_rows(summary).items()}


def append_csv(summary: Summary, file: Path) -> None:
    """Append the metrics as a row to a CSV file in tensorrtllm_backend's format.

    Write the header first if the file is new or empty. Leave the cells of unmeasured metrics empty.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        if lines.tell() == 0:
            writer.writerow(_CSV_COLUMNS)
        writer.writerow(_all_upstream_rows(summary).values())


def to_json(result: BenchmarkResult) -> dict[str, Any]:
    """Return the content of `summary.json`. The `--json` option prints the same content."""
    several = len(result.models) > 1
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": result.settings.name,
        "started_at": result.runs[0].started_at,
        "is_partial": result.is_partial,
        "ending": result.ending,
        "settings": result.settings.to_json(),
        "targets": [
            model.to_json()
            | ({"summary": result.summary_of(target=target).to_json()} if several else {})
            for target, model in enumerate(result.models)
        ],
        "vocab_size": {
            "used": result.vocab_size,
            "source": "model config"
            if all(model.vocab_size for model in result.models)
            else "fallback",
        },
        "token_counts": result.token_counts,
        "versions": result.versions,
        "machine": result.machine,
        "client": asdict(result.client) | {"was_bottleneck": result.client.was_bottleneck},
        "summary": result.summary.to_json(),
        "runs": _runs_to_json(result),
        "upstream": upstream_rows(result.summary),
        "errors": [
            {"message": message, "num_requests": count} for message, count in result.error_messages
        ],
    }


def check_output_folder(folder: Path) -> None:
    """Raise `BadInput` if `folder` cannot be created, or exists and is not an empty folder."""
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty_folder:
        raise BadInput(
            f"{folder} already exists and is not an empty folder.",
            why="the result could overwrite existing files",
            next_step=f"pass a new folder, for example `--output {shlex.quote(f'{folder}-2')}`",
        )
    _check_place(folder, "--output DIR")


def check_csv(file: Path) -> None:
    """Raise `BadInput` if the metrics cannot be appended to the CSV file.

    An existing file must be empty or have the columns of the metrics.
    """
    option = "--op-stats-csv FILE"
    if not file.exists():
        _check_place(file, option)
        return
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise _not_writable(file, error, option) from error
    # Do not read from devices and pipes.
    if file.is_file() and file.stat().st_size and not _has_csv_header(file):
        raise BadInput(
            f"{file} does not have the columns of a benchmark's CSV file.",
            why=f"its first line is not {_CSV_HEADER}",
            next_step=f"pass a new file with {option}",
        )


def _has_csv_header(file: Path) -> bool:
    with file.open(newline="", encoding="utf-8", errors="replace") as lines:
        return lines.read(len(_CSV_HEADER) + 1).rstrip("\r\n") == _CSV_HEADER


def _check_place(path: Path, option: str) -> None:
    """Raise `BadInput` if `path` cannot be created."""
    folder = next(each for each in path.absolute().parents if each.exists())
    try:
        # Create a temporary folder instead of checking permissions. Permissions may allow writing
        # even if the file system is read-only.
        with tempfile.TemporaryDirectory(prefix=".tllm-", dir=folder):
            pass
    except OSError as error:
        raise _not_writable(path, error, option) from error


def _not_writable(path: Path, error: OSError, option: str) -> BadInput:
    return BadInput(
        f"{path} cannot be written.",
        why=error.strerror or str(error),
        next_step=f"pass another path with {option}",
    )


def write_result(result: BenchmarkResult, folder: Path) -> None:
    """Write `summary.json`, `requests.jsonl` and `server_samples.jsonl` to a new or empty `folder`.

    Omit `server_samples.jsonl` if the server's metrics were not sampled. Raise `BadInput` if
    `folder` is not empty or cannot be created, or `OSError` if a file cannot be written.
    """
    check_output_folder(folder)
    with write_aside(folder) as aside:
        summary = json.dumps(to_json(result), indent=2, ensure_ascii=False)
        (aside / "summary.json").write_text(summary + "\n", encoding="utf-8")
        _write_lines(aside / "requests.jsonl", (record.to_json() for record in result.records))
        samples = [
            {"run": number, **sample.to_json(run.start)}
            for number, run in enumerate(result.runs)
            for sample in run.samples
        ]
        if samples:
            _write_lines(aside / "server_samples.jsonl", samples)


def _write_lines(file: Path, values: Iterable[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for value in values:
            lines.write(json.dumps(value, ensure_ascii=False) + "\n")


def _runs_to_json(result: BenchmarkResult) -> dict[str, Any] | None:
    """Return each run's metrics and the spread between runs, or `None` for a single run."""
    if len(result.runs) == 1:
        return None
    summaries = [result.summary_of(run=number) for number in range(len(result.runs))]
    return {
        "started_at": [run.started_at for run in result.runs],
        "summaries": [summary.to_json() for summary in summaries],
        "across": {
            name: _spread([values[name] for values in map(_main_figures, summaries)])
            for name in _main_figures(summaries[0])
            if all(name in _main_figures(summary) for summary in summaries)
        },
    }


def _main_figures(summary: Summary) -> dict[str, float]:
    figures = {rate.key: summary.rates[rate.key] for rate in RATES if rate.label}
    for metric in NAMED_TIMES.values():
        times = summary.times[metric.key]
        for statistic in _STATISTICS_ACROSS_RUNS if times else ():
            figures[f"{metric.key}.{statistic}"] = getattr(times, statistic)
    return {name: value for name, value in figures.items() if value is not None}


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values),
        "stdev": statistics.stdev(values),
        "min": min(values),
        "max": max(values),
        "values": values,
    }
