"""Implement `tllm bench sweep`, which measures a workload at several loads or on several models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtllm_serve_cli.cli.bench.bench_job import (
    Job,
    addresses_of,
    check_answers,
    open_points,
    plan_settings,
)
from trtllm_serve_cli.cli.bench.bench_options import CommonOptions, SweepOptions, check_positive
from trtllm_serve_cli.cli.bench.bench_progress import show_progress
from trtllm_serve_cli.cli.bench.show_result import (
    notify_remarks,
    notify_written,
    raise_failure,
    writing_files,
)
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.tables import FittedTable

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult, Watch
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload


@dataclass(frozen=True, slots=True)
class _Point:
    """One point of a sweep: a load, and a model if the sweep compares models.

    `label` names the point's result folder.
    """

    label: str
    job: Job
    common: CommonOptions


def run_sweep_job(
    job: Job, options: SweepOptions, workload: Workload, tokenizer: Tokenizer | None
) -> None:
    """Measure all points of the sweep in interleaved runs, then print and write the results."""
    points = _plan_points(job, options)
    planned = [(p.job, plan_settings(p.job, p.common, workload)) for p in points]

    from trtllm_serve_cli.bench.report.result_json import check_output_folder
    from trtllm_serve_cli.bench.run.sweep import run_in_turns

    folder = options.output_folder
    if folder is not None:
        check_output_folder(folder)
    opened = open_points(planned, None, tokenizer)
    check_answers(job, opened)
    results = run_in_turns(opened, options.repeat, show_run_progress)
    labels = [point.label for point in points]
    try:
        _show(results, as_json=options.as_json)
        for label, result in zip(labels, results, strict=False):
            notify_remarks(result, f"{label}: ")
    finally:  # also if the reader of a pipe, such as `head`, has closed it
        with writing_files():
            _write_points(dict(zip(labels, results, strict=False)), folder)
        notify_written(folder)
    raise_failure(results)


@contextmanager
def show_run_progress(benchmark: Benchmark) -> Iterator[Watch]:
    """Yield a function that shows the progress of one run of `benchmark`."""
    settings = replace(benchmark.settings, repeat=1)
    with show_progress(settings, addresses_of(benchmark)) as watch:
        yield watch


def _write_points(results: dict[str, BenchmarkResult], folder: Path | None) -> None:
    """Write each result to a subfolder of `folder`, and a report on all results to `folder`.

    Do nothing if `folder` is None or `results` is empty.
    """
    if folder is None or not results:
        return
    from trtllm_serve_cli.bench.report.report_writer import write_reports
    from trtllm_serve_cli.bench.report.result_json import write_result

    for label, result in results.items():
        write_result(result, folder / label)
    write_reports(folder)


def _plan_points(job: Job, options: SweepOptions) -> list[_Point]:
    """Return a point for each combination of model and load.

    Raise `BadParameter` if the sweep would have only one point, or if a list of loads is invalid.
    """
    rates = _parse_list(options.request_rates, "--request-rate", float)
    caps = _parse_list(options.concurrencies, "--concurrency", int)
    named = [*dict.fromkeys(options.model or ())]
    options = replace(options, model=tuple(named))
    models = named if len(named) > 1 else (None,)
    points = [
        _plan_point(job, options, *point)
        for point in product(models, rates or (None,), caps or (None,))
    ]
    if len(points) < 2:
        raise typer.BadParameter(
            "A sweep requires several loads or models. Pass several values, for example "
            "--concurrency 1,2,4,8 or --request-rate 1,2,4, or pass -m several times."
        )
    return points


def _plan_point(
    job: Job, options: SweepOptions, model: str | None, rate: float | None, cap: int | None
) -> _Point:
    shared = options.shared_values()
    if model is not None:
        shared["model"] = (model,)
    common = CommonOptions(**shared, request_rate=rate, concurrency=cap, repeat=options.repeat)
    parts = [
        # Names on the Hugging Face Hub contain slashes, but all result folders must be siblings.
        None if model is None else model.replace("/", "--"),
        None if rate is None else f"rate-{rate:g}",
        None if cap is None else f"concurrency-{cap}",
    ]
    return _Point("-".join(part for part in parts if part), replace(job, common=common), common)


def _parse_list(text: str | None, option: str, kind: type[float] | type[int]) -> list[Any]:
    """Parse a comma-separated list of positive numbers and remove duplicates.

    Raise `BadParameter` if the list is invalid.
    """
    if text is None:
        return []
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"The value {text!r} of {option} is not a comma-separated list of "
            f"{'integers' if kind is int else 'numbers'}. Pass a list such as {option} 1,2,4."
        ) from None
    try:
        for number in numbers:
            check_positive(number)
    except ValueError as error:
        raise typer.BadParameter(f"{option} contains an invalid number: {error}") from None
    return list(dict.fromkeys(numbers))


def _show(results: Sequence[BenchmarkResult], *, as_json: bool) -> None:
    from trtllm_serve_cli.bench.report import result_json, tables

    if as_json:
        output.show_json({"points": [result_json.to_json(result) for result in results]})
        return
    shown = (
        (tables.POINT_COLUMNS, tables.point_rows(results)),
        (tables.POINT_OBJECTIVE_COLUMNS, tables.point_objective_rows(results)),
    )
    output.show_tables(
        *(FittedTable(columns, rows, is_numeric=True) for columns, rows in shown if rows)
    )
    output.notify(tables.POINT_LEGEND)
