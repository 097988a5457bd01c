"""Implement `tllm bench search`, which finds the highest rate that meets the objectives."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.bench.bench_job import Job, check_answers, open_points, plan_settings
from trtllm_serve_cli.cli.bench.bench_options import CommonOptions, SearchOptions
from trtllm_serve_cli.cli.bench.show_result import notify_written, raise_failure, writing_files
from trtllm_serve_cli.cli.bench.sweep_command import show_run_progress
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.target import BenchTarget
from trtllm_serve_cli.errors import CheckFailed

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.run.benchmark import Benchmark, BenchmarkResult
    from trtllm_serve_cli.bench.run.search import SearchResult
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload

# Approximate maximum number of requests in a simulated run of the default duration. The limit keeps
# memory use low, because a request with 128 tokens requires about 20 KiB.
MAX_SIMULATED = 30_000
_DURATION_S = 30.0
# The default of --max-rate, as a multiple of --min-rate. Without a limit, a search would not end if
# every rate met the objectives.
_DEFAULT_RANGE = 1000


def run_search_job(
    job: Job,
    options: SearchOptions,
    workload: Workload,
    targets: Sequence[BenchTarget] | None,
    tokenizer: Tokenizer | None,
) -> None:
    """Find the highest rate that meets the objectives, then print and write the result.

    Raise:
    - `BadParameter` if --slo is missing, if --max-rate is below --min-rate, or if options cannot be
      combined.
    - `BadInput` if an objective is invalid, or if the output folder is not empty or cannot be
      written.
    - `CheckFailed` if the lowest rate misses an objective.
    - `TllmError` if a file cannot be written.
    - The exceptions of `Job.find_targets`, `open_points` and `check_answers`.
    - The exceptions of `raise_failure` if the search ends early, or if all requests at the lowest
      rate fail.
    """
    if not options.slo:
        raise typer.BadParameter(
            "A search requires at least one objective. Add --slo, for example --slo "
            "'ttft:p95<500ms'."
        )
    if options.max_rate is not None and options.max_rate < options.min_rate:
        raise typer.BadParameter(
            "--max-rate is below --min-rate. Increase --max-rate, or decrease --min-rate."
        )

    from trtllm_serve_cli.bench.model.slo import parse_objective
    from trtllm_serve_cli.bench.report.result_json import check_output_folder
    from trtllm_serve_cli.bench.run.search import SearchPlan, run_search

    if options.output_folder is not None:
        check_output_folder(options.output_folder)
    highest_rate = options.max_rate or options.min_rate * _DEFAULT_RANGE
    lowest = plan_settings(job, _at(options, options.min_rate), workload)
    # In simulations, the duration depends on the rate. Check the shortest duration now, because an
    # error during the search would discard its results.
    plan_settings(job, _at(options, highest_rate), workload)
    if targets is None and options.simulate is None:
        targets = job.find_targets()

    def open_at(rate: float) -> Benchmark:
        settings = plan_settings(job, _at(options, rate), workload)
        return open_points([(job, settings)], targets, tokenizer)[0]

    if job.checks_answers:
        check_answers(job, open_points([(job, lowest)], targets, tokenizer))
    files = _ResultFiles(options.output_folder)
    result = run_search(
        SearchPlan(
            options.min_rate,
            highest_rate,
            options.precision / 100,
            options.max_runs,
        ),
        [parse_objective(text) for text in options.slo],
        open_at,
        show_run_progress,
        files.write,
    )
    try:
        _show(result, as_json=options.as_json)
    finally:  # also if the reader of a pipe, such as `head`, has closed it
        files.complete(result)
    check_rate_found(result)


def _at(options: SearchOptions, rate: float) -> CommonOptions:
    shared = options.shared_values()
    if options.num_requests is None and options.duration is None:
        is_simulated = options.simulate is not None
        shared["duration"] = min(_DURATION_S, MAX_SIMULATED / rate if is_simulated else math.inf)
    return CommonOptions(**shared, request_rate=rate, concurrency=options.concurrency)


@dataclass(slots=True)
class _ResultFiles:
    """The writer for a search's result files. It writes no files if `folder` is None.

    If a file cannot be written, the search continues, and `complete` raises the error.
    """

    folder: Path | None
    error: OSError | None = None

    def write(self, rate: float, result: BenchmarkResult) -> None:
        """Write the result for a rate to a subfolder."""
        if self.folder is None or self.error is not None:
            return
        from trtllm_serve_cli.bench.report.result_json import write_result

        try:
            write_result(result, self.folder / f"rate-{rate:g}")
        except OSError as error:
            self.error = error

    def complete(self, result: SearchResult) -> None:
        """Write `search.json` and the report. Raise `TllmError` if a file could not be written."""
        if self.folder is None:
            return
        from trtllm_serve_cli.bench.report.report_writer import write_reports
        from trtllm_serve_cli.paths import write_text

        with writing_files():
            if self.error is not None:
                raise self.error
            text = json.dumps(result.to_json(), indent=2) + "\n"
            write_text(self.folder / "search.json", text)
            write_reports(self.folder)
        notify_written(self.folder)


def _show(result: SearchResult, *, as_json: bool) -> None:
    from trtllm_serve_cli.bench.report import tables

    if as_json:
        output.show_json(result.to_json())
    else:
        rows = tables.probe_rows(result.probes)
        output.show_table(tables.PROBE_COLUMNS, rows, is_numeric=True)
        for words in tables.search_summary(result):
            print(words)
    if result.client_bottlenecks:
        rates = ", ".join(f"{rate:g}/s" for rate in result.client_bottlenecks)
        output.console(stderr=True).print(
            f"The client was the bottleneck at {rates}, where an objective was missed. The server "
            "may therefore support a higher rate. Next: increase --workers, or run the client on "
            "another machine.",
            style="bold red",
        )


def _describe_measured(measured_ms: float | None) -> str:
    if measured_ms is None:
        return "the metric is missing or too many requests failed"
    return f"the measured value is {measured_ms:.1f} ms"


def check_rate_found(result: SearchResult) -> None:
    """Raise an exception if the search found no rate or ended early, to set the exit code."""
    if result.error is not None:
        raise result.error
    if result.ending in ("interrupted", "server_lost") or result.rate is None:
        raise_failure([result.last] if result.last else [])
    if result.rate is None:
        lowest = result.probes[0]
        broken = "; ".join(
            f"{each.objective} was missed, because {_describe_measured(each.measured_ms)}"
            for each in lowest.measured
            if not each.is_met
        )
        raise CheckFailed(
            f"The server missed an objective at the lowest rate ({lowest.rate:g}/s).",
            why=broken,
            next_step=f"lower the rate with --min-rate {lowest.rate / 10:g}, or relax the "
            "objectives in --slo",
        )
