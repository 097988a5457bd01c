"""Show the size, rate and remaining time of a download on a terminal, in total and per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trtllm_serve_cli.sources.progress import Progress

_MAX_FILES = 8
# File names are shortened to this width, so that each file's line fits in 80 columns.
_NAME_WIDTH = 24


def draw_transfer(progress: Progress) -> RenderableType:
    """Draw a line for the whole download, and one line for each file in progress.

    At most `_MAX_FILES` files are drawn.
    """
    from rich.table import Table

    from trtllm_serve_cli.sources.progress import show_progress

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=_NAME_WIDTH)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(progress.activity, show_progress(progress.total))
    for file in progress.active[:_MAX_FILES]:
        table.add_row(file.name.removesuffix(".safetensors"), show_progress(file), style="dim")
    if len(progress.active) > _MAX_FILES:
        table.add_row(f"and {len(progress.active) - _MAX_FILES} more", "", style="dim")
    return table
