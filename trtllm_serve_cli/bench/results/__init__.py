"""What is made of results that lie on a disk: pages, traces, comparisons.

Takes result folders (docs/metrics.md), as `tllm bench --output` writes them; a folder of such
folders is a sweep. All but the reading is pure.

    stored                what a result folder holds; refuses what is none
    scales, charts        axes and SVG, for any data
    figures, page         which charts a benchmark has, and the HTML page around them
    perfetto              the same as a trace to look at, request by request
    noise, compare        which differences are larger than the noise
"""

from pathlib import Path

from trtllm_serve_cli.bench.results.page import PAGE, render_page
from trtllm_serve_cli.bench.results.perfetto import TRACE, render_trace
from trtllm_serve_cli.bench.results.stored import (
    StoredResult,
    find_results,
    read_result,
    read_results,
)

__all__ = [
    "StoredResult",
    "read_result",
    "read_results",
    "render_page",
    "render_trace",
    "write_file",
    "write_views",
]


def write_views(folder: Path) -> None:
    """`report.html` and, of each result, `trace.json`: in a result's folder, or in a sweep's."""
    folders = find_results(folder)
    results = [read_result(each) for each in folders]
    for place, result in zip(folders, results, strict=True):
        write_file(place / TRACE, render_trace(result))
    write_file(folder / PAGE, render_page(results))


def write_file(file: Path, text: str) -> None:
    """Whole or not at all, in place of what was there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
