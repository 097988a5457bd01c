"""Print results to stdout and messages to stderr. With --json, stdout contains only JSON."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from trtllm_serve_cli.cli.shared.tables import FittedTable

# Line width for pipes and files, large enough that lines are never wrapped.
_UNLIMITED_WIDTH = 1_000_000
# Control characters except tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_controls(text: str) -> str:
    """Return `text` with its control characters escaped.

    Untrusted text, such as a message from a chat template, must not control the terminal.
    """
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def notify(message: str) -> None:
    """Print a message to stderr, with control characters escaped."""
    print(escape_controls(message), file=sys.stderr, flush=True)


def show_json(value: Any) -> None:
    """Print `value` as JSON to stdout."""
    print(_to_json(value, indent=2))


def show_json_line(value: Any) -> None:
    """Print `value` as one line of JSON to stdout and flush stdout."""
    print(_to_json(value), flush=True)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON, in ASCII if stdout does not support all of Unicode."""
    is_ascii = not str(sys.stdout.encoding).lower().startswith("utf")
    return json.dumps(value, indent=indent, default=str, ensure_ascii=is_ascii)


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console without highlighting or markup.

    The console wraps text only if its stream is a terminal.
    """
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _UNLIMITED_WIDTH
    return made


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
    """Print a table that fits the terminal, or one line for each row if stdout is not a terminal.

    `is_numeric` aligns all columns except the first to the right. `is_first_column_whole` prevents
    the cells of the first column from being wrapped.
    """
    from trtllm_serve_cli.cli.shared.tables import FittedTable

    show_tables(FittedTable(columns, tuple(rows), is_numeric, is_first_column_whole))


def show_tables(*tables: FittedTable) -> None:
    """Print tables that fit the terminal, or their lines if stdout is not a terminal."""
    screen = console()
    if screen.is_terminal:
        screen.print(*tables, sep="\n")
    else:
        print("\n\n".join("\n".join(table.list_lines()) for table in tables))


def wrap(text: str, *, first: str = "", rest: str = "", limit: int = _UNLIMITED_WIDTH) -> str:
    """Wrap `text` at word boundaries to the terminal's width, or to `limit` if `limit` is smaller.

    The first line starts with `first`. The other lines start with `rest`, which is truncated to a
    third of the width. If stdout is not a terminal, only `limit` applies.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else limit
    width = min(columns, limit)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest[: width // 3],
        break_long_words=False,
        break_on_hyphens=False,
    )


def show_memory(num_bytes: int) -> str:
    """Format a memory size in binary units, as Linux and NVIDIA's driver do.

    `show_size` formats the sizes of files and downloads, in decimal units.
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << power:
            return f"{num_bytes / (1 << power):.1f} {unit}"
    return f"{num_bytes} bytes"


def show_error(error: TllmError) -> None:
    """Print an error to stderr, with its cause and the next step.

    Control characters are escaped, because an error may quote untrusted text.
    """
    screen = console(stderr=True)
    for label, text, style in (
        ("Error:", error.what, "bold red"),
        ("  Why:", error.why, ""),
        (" Next:", error.next_step, "bold"),
    ):
        if text:
            screen.print(f"{label} {escape_controls(text)}", style=style, soft_wrap=True)
