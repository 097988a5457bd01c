"""Scrape metrics from one or more servers at regular intervals."""

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
    """Scrape a server indefinitely, every `interval_s` seconds, and yield each snapshot or error.

    Scrapes start at multiples of the interval after the first scrape, so that delays do not
    accumulate. If a scrape takes longer than the interval, skip the missed scrapes.
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
    """Run each watch in a separate thread and return a queue with the results of all watches.

    Each queue item is a pair of a source name and a snapshot or error.
    """
    results: WatchQueue = queue.SimpleQueue()

    def forward(name: str) -> None:
        for scraped in sources[name]():
            results.put((name, scraped))

    for name in sources:
        threading.Thread(target=forward, args=(name,), daemon=True).start()
    return results
