"""Measure a transfer's bytes, rate and remaining time, for each file and in total."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.sources.disk_space import show_size

# The averaging period for rates. A shorter period would make the displayed rate fluctuate.
_WINDOW_S = 10.0
_LINE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class FileProgress:
    """The progress of a file. `bytes_per_s` is 0 if no bytes were transferred recently."""

    name: str
    done_bytes: int
    size_bytes: int
    bytes_per_s: float

    @property
    def left_s(self) -> float | None:
        """The remaining time in seconds at the current rate, or `None` if the rate is 0."""
        left = self.size_bytes - self.done_bytes
        return left / self.bytes_per_s if self.bytes_per_s > 0 else None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a transfer. `files` are sorted by name."""

    activity: str
    files: tuple[FileProgress, ...]
    bytes_per_s: float

    @property
    def total(self) -> FileProgress:
        """The combined progress of all files."""
        done = sum(file.done_bytes for file in self.files)
        size = sum(file.size_bytes for file in self.files)
        return FileProgress(self.activity, done, size, self.bytes_per_s)

    @property
    def active(self) -> tuple[FileProgress, ...]:
        """The files that are partly transferred."""
        return tuple(file for file in self.files if 0 < file.done_bytes < file.size_bytes)


Watch = Callable[[Progress], None]


def show_progress(file: FileProgress) -> str:
    """Format the progress of a file or of all files."""
    percent = 100 * file.done_bytes // file.size_bytes if file.size_bytes else 100
    line = f"{show_size(file.done_bytes)} of {show_size(file.size_bytes)} ({percent} %)"
    if file.left_s is None:
        return line
    rate = show_size(round(file.bytes_per_s))
    return f"{line}, {rate}/s, {show_duration(file.left_s)} left"


def show_duration(seconds: float) -> str:
    """Format a duration in hours and minutes, in minutes and seconds, or in seconds.

    Durations below 10 s are rounded to a tenth of a second, longer durations to a second. From one
    hour, the seconds are omitted.
    """
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def notify_periodically(
    notify: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
) -> Watch:
    """Return a callback that passes progress to `notify` at most once every 30 seconds.

    Use this callback if the output is not a terminal, because a progress bar would fill a log file
    with lines.
    """
    last_s = clock()

    def watch(progress: Progress) -> None:
        nonlocal last_s
        if clock() - last_s < _LINE_EVERY_S:
            return
        last_s = clock()
        notify(f"{progress.activity}: {show_progress(progress.total)}")

    return watch


@dataclass(slots=True)
class _Count:
    size_bytes: int
    done_bytes: int = 0
    # Samples of the time and `moved_bytes` for computing the rate.
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    # The number of bytes that this process has transferred, excluding bytes that were already
    # present.
    moved_bytes: int = 0


class Meter:
    """A thread-safe counter of the bytes that several workers transfer."""

    def __init__(
        self,
        activity: str,
        sizes: Mapping[str, int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity = activity
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = clock()
        self._counts = {name: _Count(sizes[name]) for name in sorted(sizes)}
        self._all = _Count(sum(sizes.values()))

    def set(self, name: str, num_bytes: int) -> None:
        """Record that `num_bytes` bytes of a file are already present."""
        with self._lock:
            self._counts[name].done_bytes = num_bytes

    def add(self, name: str, num_bytes: int) -> None:
        """Record that `num_bytes` more bytes of a file have been transferred."""
        with self._lock:
            self._counts[name].done_bytes += num_bytes
            self._counts[name].moved_bytes += num_bytes
            self._all.moved_bytes += num_bytes

    def read(self) -> Progress:
        """Return the current progress and add a sample for computing rates."""
        with self._lock:
            now_s = self._clock()
            files = tuple(
                FileProgress(name, each.done_bytes, each.size_bytes, self._rate(each, now_s))
                for name, each in self._counts.items()
            )
            return Progress(self._activity, files, self._rate(self._all, now_s))

    def _rate(self, count: _Count, now_s: float) -> float:
        samples = count.samples
        if not samples:
            samples.append((self._started_s, 0))
        samples.append((now_s, count.moved_bytes))
        while len(samples) > 2 and samples[1][0] <= now_s - _WINDOW_S:
            samples.popleft()
        then_s, before = samples[0]
        return (count.moved_bytes - before) / (now_s - then_s) if now_s > then_s else 0.0
