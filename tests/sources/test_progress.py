from __future__ import annotations

import pytest

from trtllm_serve_cli.sources.progress import (
    FileProgress,
    Meter,
    Progress,
    notify_periodically,
    show_duration,
    show_progress,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_rate_excludes_bytes_already_present(clock):
    meter = Meter("Downloading", {"b": 1000, "a": 500}, clock=clock)
    meter.set("b", 800)
    meter.add("b", 100)
    clock.now_s += 2
    assert meter.read() == Progress(
        "Downloading", (FileProgress("a", 0, 500, 0.0), FileProgress("b", 900, 1000, 50.0)), 50.0
    )


def test_rate_covers_the_last_seconds(clock):
    meter = Meter("Downloading", {"a": 10_000}, clock=clock)
    meter.add("a", 5000)
    for _ in range(30):
        clock.now_s += 1
        meter.add("a", 10)
        progress = meter.read()
    assert progress.bytes_per_s == 10.0


def test_total_and_active_files():
    files = (FileProgress("a", 0, 10, 0), FileProgress("b", 5, 10, 1), FileProgress("c", 10, 10, 0))
    progress = Progress("Downloading", files, 2.5)
    assert progress.total == FileProgress("Downloading", 15, 30, 2.5)
    assert progress.active == (files[1],)
    assert progress.total.left_s == 6.0


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (
            FileProgress("w", 3_100_000_000, 9_900_000_000, 85_000_000.0),
            "3.1 GB of 9.9 GB (31 %), 85.0 MB/s, 1 min 20 s left",
        ),
        (FileProgress("w", 0, 9_900_000_000, 0.0), "0 bytes of 9.9 GB (0 %)"),
        (FileProgress("w", 0, 0, 0.0), "0 bytes of 0 bytes (100 %)"),
    ],
    ids=["moving", "waiting", "empty"],
)
def test_shows_progress_as_a_line(file, shown):
    assert show_progress(file) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0 s"),
        (0.44, "0.4 s"),
        (3, "3 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3601, "1 h 00 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_duration_has_at_most_two_units(seconds, shown):
    assert show_duration(seconds) == shown


def test_notifies_every_half_minute(clock):
    messages: list[str] = []
    watch = notify_periodically(messages.append, clock=clock)
    progress = Progress("Downloading", (FileProgress("w", 50, 100, 10.0),), 10.0)
    for _ in range(100):
        clock.now_s += 1
        watch(progress)
    assert messages == ["Downloading: 50 bytes of 100 bytes (50 %), 10 bytes/s, 5 s left"] * 3
