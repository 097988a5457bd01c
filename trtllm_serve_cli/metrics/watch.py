"""Scraping again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics


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
        turns = (clock() - started_s) // interval_s + 1
        sleep(max(0.0, started_s + turns * interval_s - clock()))
