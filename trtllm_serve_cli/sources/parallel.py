"""Run several transfers in parallel while the calling thread shows their progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

_TICK_S = 0.25
_Item = TypeVar("_Item")


class Stopped(Exception):
    """Raised in a worker that stops because another worker failed or the user pressed Ctrl-C."""


def run_parallel(
    work: Callable[[_Item, threading.Event], None],
    items: Iterable[_Item],
    *,
    max_workers: int,
    tick: Callable[[], None],
) -> None:
    """Run `work` for each item in a thread pool. Raise the exception of the first failure.

    While the threads are running, call `tick` in the calling thread about four times per second. If
    a worker fails or the user presses Ctrl-C, set the event that is passed to `work`. `work` should
    raise `Stopped` when the event is set. All workers have stopped by the time this function
    returns or raises.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=max_workers) as pool:
        futures = [pool.submit(work, item, stop) for item in items]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
                tick()
                for future in done:
                    future.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
