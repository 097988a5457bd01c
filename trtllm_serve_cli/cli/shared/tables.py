"""Fit a table to the width of the terminal, without breaking numbers across lines.

Only columns with long text are wrapped. If the other columns leave too little space for long text,
each row is rendered as a block with one line per cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
    from rich.table import Table

# Columns up to this width are never wrapped. The width is enough for any number or date.
_WHOLE_WIDTH = 20


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that Rich renders as a grid, or as blocks if the terminal is too narrow.

    `is_numeric` aligns all columns except the first to the right. `is_first_column_whole` prevents
    the cells of the first column from being wrapped.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_numeric: bool = False
    is_first_column_whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the grid if it fits the width in `options`, or the blocks otherwise."""
        gaps = (gap for gap in (2, 1) if self._min_width(gap) <= options.max_width)
        gap = next(gaps, None)
        yield self._blocks() if gap is None else self._grid(gap)

    def list_lines(self) -> list[str]:
        """Return the header and one line per row, aligned but neither wrapped nor truncated.

        Programs that read the table from a pipe rely on this format.
        """
        lines = [self.columns, *self.rows]
        widths = self._widths
        return [
            "  ".join(map(self._align, line, widths, range(len(widths)))).rstrip() for line in lines
        ]

    @property
    def _widths(self) -> list[int]:
        from rich.cells import cell_len

        cells = zip(self.columns, *self.rows, strict=True)
        return [max(map(cell_len, column)) for column in cells]

    def _min_width(self, gap: int) -> int:
        """Return the width of the grid, including margins, if long columns are wrapped."""
        widths = self._widths
        kept = [
            width if self._is_whole(index, width) else _WHOLE_WIDTH
            for index, width in enumerate(widths)
        ]
        return sum(kept) + gap * (len(widths) - 1) + 2

    def _is_whole(self, index: int, width: int) -> bool:
        return width <= _WHOLE_WIDTH or (index == 0 and self.is_first_column_whole)

    def _is_right(self, index: int) -> bool:
        return self.is_numeric and index > 0

    def _align(self, cell: str, width: int, index: int) -> str:
        from rich.cells import cell_len

        padding = " " * (width - cell_len(cell))
        return padding + cell if self._is_right(index) else cell + padding

    def _grid(self, gap: int) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
        for index, (name, width) in enumerate(zip(self.columns, self._widths, strict=True)):
            justify: JustifyMethod = "right" if self._is_right(index) else "left"
            is_whole = self._is_whole(index, width)
            table.add_column(name, overflow="fold", no_wrap=is_whole, justify=justify)
        for row in self.rows:
            table.add_row(*row)
        return table

    def _blocks(self) -> Table:
        """Return a table that renders each row as a block.

        Each line of a block contains the name of a column and the row's cell. Empty cells are
        omitted, except in the first column.
        """
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False, padding=0)
        table.add_column(overflow="fold")
        for row in self.rows:
            table.add_row(f"{self.columns[0]} {row[0]}", style="bold")
            table.add_row(self._block(row))
        return table

    def _block(self, row: Sequence[str]) -> Table:
        from rich.table import Table

        block = Table(box=None, show_header=False, pad_edge=True, padding=(0, 0, 0, 2))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold", justify="right" if self.is_numeric else "left")
        for name, value in zip(self.columns[1:], row[1:], strict=True):
            if value:
                block.add_row(name, value)
        return block
