"""Show the progress of downloads and build steps in `tllm import` and `tllm build`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from trtllm_serve_cli.importing.importer import Display
    from trtllm_serve_cli.sources.progress import Progress as Transfer
    from trtllm_serve_cli.sources.progress import Watch


class WorkDisplay:
    """A display for the messages and the progress of an import or a build.

    Messages are printed as lines. If `is_live` is set, the display also shows the progress of the
    current download or build step, until the next message is printed.
    """

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self._live: Progress | None = None
        self._transfer: Status | None = None
        self._is_counted = False

    def notify(self, text: str) -> None:
        """Clear the live progress and print a message."""
        self.stop()
        output.notify(text)

    def on_line(self, line: str) -> None:
        """Show the progress reported in `line`, a line of build step output.

        Until the step reports progress, show the line itself.
        """
        if not self._is_live:
            return
        from trtllm_serve_cli.build.progress import parse_progress

        live = self._live or self._start()
        if progress := parse_progress(line):
            self._is_counted = True
            total = None if progress.fraction is None else 1.0
            live.update(
                live.task_ids[0],
                description=_shorten(progress.what),
                total=total,
                completed=progress.fraction or 0.0,
            )
        elif not self._is_counted and not line.startswith("$ "):
            live.update(live.task_ids[0], description=_shorten(line))

    @property
    def watch(self) -> Watch | None:
        """The callback that shows a download's progress, or None if the display is not live."""
        return self._show_transfer if self._is_live else None

    def _show_transfer(self, progress: Transfer) -> None:
        from trtllm_serve_cli.cli.shared.transfer_ui import draw_transfer

        if progress.total.done_bytes >= progress.total.size_bytes:
            self.stop()
            return
        if self._transfer is None:
            self._transfer = output.console(stderr=True).status("")
            self._transfer.start()
        self._transfer.update(draw_transfer(progress))

    def stop(self) -> None:
        """Clear the live progress if it is visible."""
        if self._transfer is not None:
            self._transfer.stop()
            self._transfer = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> Progress:
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            SpinnerColumn(),
            TimeElapsedColumn(),
            BarColumn(20),
            TaskProgressColumn(),
            TextColumn("{task.description}", style="dim", markup=False),
        )
        self._live = Progress(*columns, console=output.console(stderr=True), transient=True)
        self._live.add_task("", total=None)
        self._is_counted = False
        self._live.start()
        return self._live


@contextmanager
def show_work() -> Iterator[Display]:
    """Yield a display on stderr.

    Ctrl-C, SIGTERM and SIGHUP end the `with` block with an exception that sets the exit code.
    """
    from trtllm_serve_cli.importing.importer import Display
    from trtllm_serve_cli.processes import exit_on_signals

    display = WorkDisplay(is_live=sys.stderr.isatty())
    with exit_on_signals():
        try:
            yield Display(display.notify, display.on_line, display.watch)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        finally:
            display.stop()


def _shorten(text: str) -> str:
    return " ".join(text.split())[-60:]
