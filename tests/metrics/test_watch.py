from __future__ import annotations

from itertools import islice

from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.metrics.parse import Snapshot
from trtllm_serve_cli.metrics.watch import watch_metrics


class Clock:
    """A clock that advances when the code sleeps or a scrape takes time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def read(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


def _watch(durations_s: list[float], interval_s: float) -> list[float]:
    clock = Clock()
    left = iter(durations_s)
    begun = []

    def fetch() -> str:
        begun.append(clock.read())
        clock.pass_by(next(left))
        return "a 1\n"

    scrapes = watch_metrics(fetch, interval_s, clock.read, clock.pass_by)
    assert all(isinstance(s, Snapshot) for s in islice(scrapes, len(durations_s)))
    return begun


def test_scrapes_keep_their_interval() -> None:
    assert _watch([0.5, 0.25, 0.0, 1.5], 2.0) == [100.0, 102.0, 104.0, 106.0]


def test_slow_scrape_delays_the_next_to_its_interval() -> None:
    assert _watch([5.0, 0.0, 0.0], 2.0) == [100.0, 106.0, 108.0]


def test_watch_continues_after_errors() -> None:
    clock = Clock()
    gone = NoServer("No server")
    pages = iter(["a 1\n", gone, "half a li", "a 2\n"])

    def fetch() -> str:
        page = next(pages)
        if isinstance(page, NoServer):
            raise page
        return page

    first, second, third, fourth = islice(watch_metrics(fetch, 1.0, clock.read, clock.pass_by), 4)
    assert isinstance(first, Snapshot) and isinstance(fourth, Snapshot)
    assert second is gone
    assert "not valid" in str(third)
