"""Write the HTML page and the traces for the benchmark results in a folder."""

from __future__ import annotations

from pathlib import Path

from trtllm_serve_cli.bench.report.page import PAGE, render_page
from trtllm_serve_cli.bench.report.perfetto import TRACE, render_trace
from trtllm_serve_cli.bench.report.result_reader import (
    REQUESTS,
    SAMPLES,
    SUMMARY,
    find_results,
    read_result,
)
from trtllm_serve_cli.paths import write_text

# The files that a benchmark can write to its result folder.
RESULT_FILES = (SUMMARY, REQUESTS, SAMPLES, PAGE, TRACE)


def write_reports(folder: Path) -> None:
    """Write `report.html` to `folder`, and `trace.json` to each result folder.

    `folder` is a result folder, or contains the result folders of a sweep or a search. Raise
    `BadInput` if `folder` does not contain a result or a result is invalid, or `OSError` if a file
    cannot be written.
    """
    folders = find_results(folder)
    results = [read_result(each) for each in folders]
    for place, result in zip(folders, results, strict=True):
        write_text(place / TRACE, render_trace(result))
    write_text(folder / PAGE, render_page(results))
