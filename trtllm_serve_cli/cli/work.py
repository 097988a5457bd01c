"""What a terminal shows while an import works: the download's figures, the last line of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trtllm_serve_cli.sources import Progress, Watch

_MAX_FILES = 8
_NAME_WIDTH = 24  # leaves room for the figures in 80 columns


@dataclass(frozen=True, slots=True)
class Shown:
    """Where an import's work goes; without a terminal, there is nobody to `watch`."""

    on_line: Callable[[str], None]
    watch: Watch | None


@contextmanager
def watch_work() -> Iterator[Shown]:
    """Shows the work below the last line on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield Shown(lambda line: None, None)
        return
    from rich.text import Text

    with output.console(stderr=True).status("") as status:

        def show_line(line: str) -> None:
            status.update(Text(line.strip()[-70:], style="dim"))

        def show_transfer(progress: Progress) -> None:
            is_over = progress.total.done_bytes >= progress.total.size_bytes
            status.update("" if is_over else draw_transfer(progress))

        yield Shown(show_line, show_transfer)


def draw_transfer(progress: Progress) -> RenderableType:
    """A line for all, and one for each file that is under way."""
    from rich.table import Table

    from trtllm_serve_cli.sources import show_progress

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=_NAME_WIDTH)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(progress.activity, show_progress(progress.total))
    for file in progress.moving[:_MAX_FILES]:
        table.add_row(file.name.removesuffix(".safetensors"), show_progress(file), style="dim")
    if len(progress.moving) > _MAX_FILES:
        table.add_row(f"and {len(progress.moving) - _MAX_FILES} more", "", style="dim")
    return table
