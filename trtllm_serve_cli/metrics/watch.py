"""Scraping again and again."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics

Watch = Callable[[], Iterator[Snapshot | TllmError]]
WatchQueue = queue.SimpleQueue[tuple[str, Snapshot | TllmError]]


def watch_metrics(
    fetch: Callable[[], str],
    interval_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Snapshot | TllmError]:
    """A snapshot every `interval_s`, for ever; where a scrape fails, what went wrong instead.

    Scrapes are due at multiples of the interval from the first, so they do not drift; a scrape
    that takes longer than that makes the next one wait for its own turn.
    """
    started_s = clock()
    while True:
        try:
            page = fetch()
            yield parse_metrics(page, clock())
        except TllmError as error:
            yield error
        num_intervals = (clock() - started_s) // interval_s + 1
        sleep(max(0.0, started_s + num_intervals * interval_s - clock()))


def start_watches(sources: Mapping[str, Watch]) -> WatchQueue:
    """Where the watches, each in a thread of its own, put what they give, with their names."""
    results: WatchQueue = queue.SimpleQueue()

    def forward(name: str) -> None:
        for scraped in sources[name]():
            results.put((name, scraped))

    for name in sources:
        threading.Thread(target=forward, args=(name,), daemon=True).start()
    return results
