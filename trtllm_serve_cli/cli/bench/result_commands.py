"""Implement `tllm bench report` and `tllm bench compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import JsonOption
from trtllm_serve_cli.cli.shared.tables import FittedTable

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.report.compare import Comparison
    from trtllm_serve_cli.bench.report.result_reader import StoredResult

_WRITTEN = "written by `tllm bench --output`"


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help=f"Result folders {_WRITTEN}. All results are rendered on one page.",
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            dir_okay=False,
            help="Output HTML file. Required if several folders are passed. Default: report.html "
            "in DIR.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help=(
                "Output file for a request trace, which can be opened at ui.perfetto.dev. "
                "Requires a single result. Default: no trace."
            ),
        ),
    ] = None,
) -> None:
    """Render benchmark results as one self-contained HTML page.

    Example:  tllm bench report results/before results/after -o both.html
    """
    if file is None and len(folders) > 1:
        raise typer.BadParameter(
            "A report on several folders requires an output file. Pass -o FILE."
        )
    from trtllm_serve_cli.bench.report.page import PAGE, render_page
    from trtllm_serve_cli.bench.report.perfetto import render_trace
    from trtllm_serve_cli.bench.report.result_reader import protect_results, read_results

    page = folders[0] / PAGE if file is None else file
    if trace is not None and trace.resolve() == page.resolve():
        raise typer.BadParameter(
            f"{trace} is the same file as the report ({page}). Pass another file with --trace or "
            "-o.",
            param_hint="--trace",
        )
    results = read_results(folders)
    if trace is not None and len(results) > 1:
        raise typer.BadParameter(
            f"--trace requires a single result, but the folders contain {len(results)} results. "
            "Pass a folder with one result, or omit --trace."
        )
    protect_results(results, [page] if trace is None else [page, trace])
    _write(page, render_page(results))
    if trace is not None:
        _write(trace, render_trace(results[0]))


def _write(path: Path, text: str) -> None:
    from trtllm_serve_cli.errors import BadInput
    from trtllm_serve_cli.paths import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written.",
            why=error.strerror or str(error),
            next_step="choose a file in a writable folder with -o FILE or --trace FILE",
        ) from error
    print(path)


def compare(
    before: Annotated[
        Path, typer.Argument(metavar="A", help=f"Result folder {_WRITTEN} before the change.")
    ],
    after: Annotated[
        Path, typer.Argument(metavar="B", help=f"Result folder {_WRITTEN} after the change.")
    ],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help=(
                "Exit with code 3 if a metric changes by more than this limit, for example "
                "'ttft:p95>+5%' or 'requests_per_s<-5%'. Repeatable. Default: no limits."
            ),
        ),
    ] = None,
    allow_different: Annotated[
        bool,
        typer.Option(
            "--allow-different",
            help="Compare the results even if their workloads, loads, objectives or streaming "
            "settings differ.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two results and report which differences exceed the noise.

    Noise between runs can be estimated only if each result contains several runs (--repeat). Sweeps
    give the best estimate, because a sweep alternates between the loads. If a result contains a
    single run, only the noise between requests is known.

    Example:  tllm bench compare results/before results/after --fail-on 'ttft:p95>+5%'
    """
    from trtllm_serve_cli.bench.report import compare as comparing

    limits = [comparing.parse_limit(text) for text in fail_on or ()]
    results = (_read_one(before), _read_one(after))
    comparison = comparing.compare(*results, [limit.measure for limit in limits])
    if not allow_different:
        comparing.check_comparable(comparison)
    if as_json:
        output.show_json(comparison.to_json())
    else:
        _show(comparison)
    comparing.check_limits(comparison, limits)


def _read_one(folder: Path) -> StoredResult:
    from trtllm_serve_cli.bench.report.result_reader import read_results
    from trtllm_serve_cli.errors import BadInput

    results = read_results([folder])
    if len(results) > 1:
        raise BadInput(
            f"{folder} contains {len(results)} results.",
            why="`tllm bench compare` requires one result per folder",
            next_step="pass one of these results, for example "
            f"{shlex.quote(str(folder / results[0].name))}",
        )
    return results[0]


def _show(comparison: Comparison) -> None:
    from trtllm_serve_cli.bench.report import compare_text

    screen = output.console(stderr=True)
    for warning in comparison.warnings:
        screen.print(f"{warning[0].upper()}{warning[1:]}.", style="bold red")
    changes = compare_text.change_rows(comparison)
    tables = [FittedTable(compare_text.CHANGE_COLUMNS, changes, is_numeric=True)]
    if rows := compare_text.difference_rows(comparison):
        tables.append(FittedTable(("Difference", "A", "B"), rows))
    output.show_tables(*tables)
    for line in compare_text.noise_notes(comparison):
        output.notify(line)
