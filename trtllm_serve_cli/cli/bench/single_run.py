"""Run a single benchmark and compare its result with reference results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.bench.bench_job import (
    Job,
    addresses_of,
    check_answers,
    open_points,
    plan_settings,
)
from trtllm_serve_cli.cli.bench.bench_options import CommonOptions
from trtllm_serve_cli.cli.bench.bench_progress import show_progress
from trtllm_serve_cli.cli.bench.show_result import (
    notify_written,
    raise_failure,
    show_result,
    writing_files,
)
from trtllm_serve_cli.cli.shared.target import BenchTarget

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.report.checks import Reference
    from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload


def run_one(
    job: Job,
    common: CommonOptions,
    workload: Workload,
    targets: Sequence[BenchTarget] | None,
    tokenizer: Tokenizer | None,
) -> None:
    """Run a benchmark, then print its result and write the requested files.

    If the benchmark fails, or if its result differs from the reference by more than the tolerances,
    raise an exception that sets the exit code.
    """
    settings = plan_settings(job, common, workload)
    reference = _read_reference(common)

    from trtllm_serve_cli.bench.report import result_json
    from trtllm_serve_cli.bench.report.checks import check

    _check_csv_place(common)
    if common.output_folder is not None:
        result_json.check_output_folder(common.output_folder)
    if common.op_stats_csv is not None:
        result_json.check_csv(common.op_stats_csv)
    benchmark = open_points([(job, settings)], targets, tokenizer)[0]
    check_answers(job, [benchmark])
    with show_progress(settings, addresses_of(benchmark)) as watch:
        result = benchmark.run_all(watch)
    try:
        show_result(result, as_json=common.as_json)
    finally:  # also if the reader of a pipe, such as `head`, has closed it
        with writing_files():
            _write(result, common)
        notify_written(common.output_folder)
    raise_failure([result])
    if reference is not None:
        check(result_json.csv_row(result.summary), reference)


def _check_csv_place(common: CommonOptions) -> None:
    """Raise `BadParameter` if --op-stats-csv is the path of --output, or of a file in it."""
    if common.op_stats_csv is None or common.output_folder is None:
        return
    from trtllm_serve_cli.bench.report.report_writer import RESULT_FILES

    file, folder = common.op_stats_csv.resolve(), common.output_folder.resolve()
    if folder.is_relative_to(file) or file in (folder / name for name in RESULT_FILES):
        raise typer.BadParameter(
            f"{common.op_stats_csv} is also written by --output {common.output_folder}. Pass "
            "another file.",
            param_hint="--op-stats-csv",
        )


def _write(result: BenchmarkResult, common: CommonOptions) -> None:
    from trtllm_serve_cli.bench.report import result_json
    from trtllm_serve_cli.bench.report.report_writer import write_reports

    # Append to the CSV file last, because it may be in the output folder, which must be empty.
    if common.output_folder is not None:
        result_json.write_result(result, common.output_folder)
        write_reports(common.output_folder)
    if common.op_stats_csv is not None:
        result_json.append_csv(result.summary, common.op_stats_csv)


def _read_reference(common: CommonOptions) -> Reference | None:
    tolerances = {
        "--check-perf-atol": common.check_perf_atol,
        "--check-perf-rtol": common.check_perf_rtol,
    }
    if common.check_perf_json is None:
        for option, value in {"--check-perf-key": common.check_perf_key, **tolerances}.items():
            if value is not None:
                raise typer.BadParameter(
                    f"{option} requires --check-perf-json. Add --check-perf-json FILE, or omit "
                    f"{option}."
                )
        return None
    if common.check_perf_key is None:
        raise typer.BadParameter(
            "--check-perf-json requires --check-perf-key. Add "
            "--check-perf-key KEY, or omit --check-perf-json."
        )
    from trtllm_serve_cli.bench.report.checks import read_reference

    return read_reference(common.check_perf_json, common.check_perf_key, *tolerances.values())
