"""Print results to stdout and messages to stderr. With --json, stdout contains only JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType


def notify(message: str) -> None:
    """Print a message to stderr."""
    print(message, file=sys.stderr, flush=True)


def show_json(value: Any) -> None:
    """Print `value` as JSON to stdout."""
    print(_to_json(value, indent=2))


def show_json_line(value: Any) -> None:
    """Print `value` as one line of JSON to stdout, and flush stdout."""
    print(_to_json(value), flush=True)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON, in ASCII if stdout does not support all of Unicode."""
    is_ascii = not str(sys.stdout.encoding).lower().startswith("utf")
    return json.dumps(value, indent=indent, default=str, ensure_ascii=is_ascii)


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console that does not highlight text and does not interpret markup."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """Print a Rich renderable, such as a table, to stdout.

    If stdout is not a terminal, print plain text without colors.
    """
    console().print(renderable)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    is_numeric: bool = False,
    is_first_column_whole: bool = False,
) -> None:
    """Print a table that wraps long cells instead of truncating them.

    If `is_first_column_whole` or `is_numeric` is set, the cells in the first column do not wrap.
    `is_numeric` also aligns all columns except the first to the right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: JustifyMethod = "right" if is_numeric and index else "left"
        table.add_column(
            column,
            overflow="fold",
            no_wrap=not index and (is_numeric or is_first_column_whole),
            justify=justify,
        )
    for row in rows:
        table.add_row(*row)
    show(table)


def show_error(error: TllmError) -> None:
    """Print an error to stderr, with its cause and the next step."""
    screen = console(stderr=True)
    screen.print(f"Error: {error.what}", style="bold red", soft_wrap=True)
    if error.why:
        screen.print(f"  Why: {error.why}", soft_wrap=True)
    if error.next_step:
        screen.print(f" Next: {error.next_step}", style="bold", soft_wrap=True)
