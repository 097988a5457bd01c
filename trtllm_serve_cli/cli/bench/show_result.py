"""Print the result of a benchmark and raise an exception if the benchmark failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.tables import FittedTable
from trtllm_serve_cli.errors import BadInput, RequestFailed, TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.run.benchmark import BenchmarkResult


def show_result(result: BenchmarkResult, *, as_json: bool) -> None:
    """Print the result as tables or as JSON, followed by remarks."""
    from trtllm_serve_cli.bench.report import result_json

    if as_json:
        output.show_json(result_json.to_json(result))
    else:
        _show_tables(result)
    notify_remarks(result)
    if result.ending == "interrupted":
        output.notify("The benchmark was interrupted, so the results are partial.")


@contextmanager
def writing_files() -> Iterator[None]:
    """Raise `TllmError` if the `with` block cannot write the result files.

    Callers print the result before the block, so that a full disk does not discard a long
    measurement. They run the block even if printing fails, so that a closed pipe does not either.
    """
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise TllmError(
            "The result files could not be written.",
            why=f"{error.strerror or error}{where}",
            next_step="copy the result above, then free disk space or choose another folder "
            "before the next benchmark",
        ) from error


def notify_written(folder: Path | None) -> None:
    """Print the paths of the result folder and the report, unless `folder` is None."""
    if folder is not None:
        output.notify(f"Result: {folder}\nReport: {folder / 'report.html'}")


def notify_remarks(result: BenchmarkResult, where: str = "") -> None:
    """Print remarks on the result, its most frequent errors, and the client's bottlenecks.

    Each printed line starts with `where`.
    """
    from trtllm_serve_cli.bench.report import tables

    for remark in tables.remarks(result):
        output.notify(f"{where}{remark}")
    screen = output.console(stderr=True)
    summary = result.summary
    if summary.num_failed:
        screen.print(
            f"{where}{summary.num_failed} of {summary.num_requests} requests failed. The times and "
            "rates exclude failed requests.",
            style="bold red",
        )
    for message, count in result.error_messages[:5]:
        output.notify(f"{where}{count} failed: {message}")
    for bottleneck in result.client.bottlenecks:
        screen.print(f"{where}The client was the bottleneck: {bottleneck}.", style="bold red")


def _show_tables(result: BenchmarkResult) -> None:
    from trtllm_serve_cli.bench.report import tables

    summary = result.summary
    shown = (
        (("Statistic", "Value"), tables.stat_rows(summary)),
        (tables.TIME_COLUMNS, tables.time_rows(summary)),
        (tables.OBJECTIVE_COLUMNS, tables.objective_rows(summary)),
        (tables.TARGET_COLUMNS, tables.target_rows(result)),
        (tables.RUN_COLUMNS, tables.run_rows(result)),
    )
    output.show_tables(
        *(FittedTable(columns, rows, is_numeric=True) for columns, rows in shown if rows)
    )


def raise_failure(results: Sequence[BenchmarkResult]) -> None:
    """Raise an exception if a result is partial or unmeasured, or if all its requests failed.

    The exception describes the first partial result. If no result is partial, the exception
    describes the first failed result. If no result failed either, it describes the first result
    that contains only ramp requests.
    """
    cut_off = [each for each in results if each.is_partial]
    failed = [r for r in results if r.summary.num_failed and not r.summary.num_completed]
    for result in (*cut_off, *failed):
        _raise_failure_of(result)
    for result in results:
        if result.summary.num_ramp and not result.summary.num_requests:
            raise BadInput(
                "No request was measured.",
                why=f"all {result.summary.num_ramp} requests were due during the ramp",
                next_step="decrease --ramp, or increase --num-requests or --duration",
            )


def _raise_failure_of(result: BenchmarkResult) -> NoReturn:
    summary = result.summary
    if result.ending == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if result.ending == "server_lost":
        raise RequestFailed(
            "The connection to the server was lost during the run.",
            why="the server could no longer be reached after "
            f"{summary.num_completed} completed and {summary.num_failed} failed requests",
            next_step="check the server with `tllm status`",
        )
    message, count = result.error_messages[0]
    raise RequestFailed(
        f"Every request failed ({summary.num_failed} of {summary.num_requests}).",
        why=f"the most frequent error ({count} of {summary.num_failed}) is {message}",
        next_step="read the server's log with `tllm logs`",
    )
