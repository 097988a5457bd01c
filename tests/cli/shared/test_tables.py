"""Tables on terminals of any width, and in pipes."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.report import tables as bench_tables
from trtllm_serve_cli.cli.shared.tables import FittedTable

SOURCE = "hf:meta-llama/Meta-Llama-3.1-70B-Instruct"
MODELS = FittedTable(
    ("model", "engine", "imported", "source"),
    [("llama-3.1-70b", "tensorrt", "2026-11-22 10:33", SOURCE)],
)
TIMES = FittedTable(
    bench_tables.TIME_COLUMNS, bench_tables.time_rows(make_result(runs=1).summary), is_numeric=True
)
RUNS = FittedTable(
    bench_tables.RUN_COLUMNS, bench_tables.run_rows(make_result(runs=3)), is_numeric=True
)


def draw(table: FittedTable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 70, 80, 120])
@pytest.mark.parametrize("table", [MODELS, TIMES, RUNS], ids=["models", "times", "runs"])
def test_no_figure_is_broken_or_lost(table: FittedTable, width: int) -> None:
    shown = draw(table, width)
    words = shown.split()
    assert max(map(len, shown.splitlines())) <= width
    for cell in (cell for row in table.rows for cell in row if re.match(r"\d", cell)):
        assert all(word in words for word in cell.split()), cell


def test_dates_stay_on_one_line() -> None:
    for width in (40, 60, 70, 80):
        assert "2026-11-22 10:33" in draw(MODELS, width)


def test_long_texts_lose_nothing() -> None:
    assert SOURCE in "".join(draw(FittedTable(("source",), [(SOURCE,)]), 30).split())


def test_narrow_terminal_shows_a_line_for_each_cell() -> None:
    table = FittedTable(("time (ms)", "p50", "p99"), [("TTFT", "12.5", ""), ("ITL", "3.1", "4.0")])
    lines = [line.rstrip() for line in draw(table, 14).splitlines()]
    assert lines == ["time (ms) TTFT", "  p50  12.5", "time (ms) ITL", "  p50  3.1", "  p99  4.0"]


def test_lines_for_programs_have_one_record_each() -> None:
    assert MODELS.list_lines() == [
        f"model{' ' * 10}engine    imported{' ' * 10}source",
        f"llama-3.1-70b  tensorrt  2026-11-22 10:33  {SOURCE}",
    ]
