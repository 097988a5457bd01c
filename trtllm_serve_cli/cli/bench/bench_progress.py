"""Show a benchmark's progress on stderr.

On a terminal, show a progress bar. Otherwise, print a line at most every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.shared import output

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.run.benchmark import Progress

_LINE_PERIOD_S = 10.0


@contextmanager
def show_progress(
    settings: BenchmarkSettings, addresses: Sequence[str]
) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows the `Progress` that it receives."""
    from trtllm_serve_cli.bench.report.tables import describe_amount, describe_load

    # Print the addresses on a separate line, because the addresses and the bar together would
    # exceed 80 columns.
    where = ", ".join(addresses)
    output.notify(f"{describe_amount(settings)} to {where}, {describe_load(settings.load)}")
    formatter = ProgressFormatter(settings.duration_s)
    screen = output.console(stderr=True)
    if not screen.is_terminal:
        yield ProgressLogger(formatter)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.fields[text]}")
    # Refresh the bar only in `watch`. Rich's refresh thread would interrupt the load generator ten
    # times a second and distort the measurements.
    bar = Bar(BarColumn(20), MofNCompleteColumn(), text, console=screen, auto_refresh=False)
    with bar:
        task = bar.add_task("", total=None, text="")

        def watch(progress: Progress) -> None:
            text = formatter.describe(progress)
            bar.update(task, total=progress.num_requests, completed=progress.num_ended, text=text)
            bar.refresh()

        yield watch


class ProgressFormatter:
    """A formatter for the rate, requests in flight, failures and remaining time of a `Progress`."""

    def __init__(
        self, duration_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._duration_s = duration_s
        self._clock = clock
        self._run = -1
        self._started_s = 0.0

    def describe(self, progress: Progress) -> str:
        now_s = self._clock()
        if progress.run != self._run:
            self._run, self._started_s = progress.run, now_s
        elapsed_s = now_s - self._started_s
        rate = progress.num_ended / elapsed_s if elapsed_s > 0 else 0.0
        parts = [
            f"{rate:.1f}/s",
            f"{progress.num_sent - progress.num_ended} in flight",
            f"{progress.num_failed} failed",
        ]
        left_s = self._left_s(progress, elapsed_s, rate)
        if left_s is not None:
            minutes, seconds = divmod(round(left_s), 60)
            parts.append(f"{minutes}:{seconds:02} left")
        return ", ".join(parts)

    def _left_s(self, progress: Progress, elapsed_s: float, rate: float) -> float | None:
        if self._duration_s is not None:
            return max(self._duration_s - elapsed_s, 0.0)
        if progress.num_requests is None or not rate:
            return None
        return (progress.num_requests - progress.num_ended) / rate


class ProgressLogger:
    """A callable that prints the benchmark's progress on one line, at most every ten seconds."""

    def __init__(
        self, formatter: ProgressFormatter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._formatter = formatter
        self._clock = clock
        self._logged_s = clock()

    def __call__(self, progress: Progress) -> None:
        text = self._formatter.describe(progress)
        if self._clock() - self._logged_s >= _LINE_PERIOD_S:
            self._logged_s = self._clock()
            total = "" if progress.num_requests is None else f" of {progress.num_requests}"
            output.notify(f"{progress.num_ended}{total} ended, {text}")
