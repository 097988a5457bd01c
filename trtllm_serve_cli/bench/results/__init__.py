"""What is made of results that lie on a disk: pages, traces, comparisons.

Takes result folders (docs/metrics.md), as `tllm bench --output` writes them; a folder of such
folders is a sweep. All but the reading is pure.

    stored                what a result folder holds; refuses what is none
    scales, charts        axes and SVG, for any data
    figures, page         which charts a benchmark has, and the HTML page around them
    perfetto              the same as a trace to look at, request by request
    compare               which differences are larger than the noise
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
from trtllm_serve_cli.paths import write_text

__all__ = [
    "StoredResult",
    "read_result",
    "read_results",
    "render_page",
    "render_trace",
    "write_views",
]


def write_views(folder: Path) -> None:
    """`report.html` and, of each result, `trace.json`: in a result's folder, or in a sweep's."""
    folders = find_results(folder)
    results = [read_result(each) for each in folders]
    for place, result in zip(folders, results, strict=True):
        write_text(place / TRACE, render_trace(result))
    write_text(folder / PAGE, render_page(results))
