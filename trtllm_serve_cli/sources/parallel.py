"""Runs several transfers at once, watched from the thread that asked for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

_TICK_S = 0.25
_Item = TypeVar("_Item")


class Stopped(Exception):
    """Another of the transfers failed, or the user interrupted; nothing to report of this one."""


def run_parallel(
    work: Callable[[_Item, threading.Event], None],
    items: Iterable[_Item],
    *,
    max_workers: int,
    tick: Callable[[], None],
) -> None:
    """Does `work` for each of the items, and `tick` meanwhile; raises the first failure.

    The event given to `work` is set when it should raise `Stopped` soon: something else failed, or
    Ctrl-C was pressed. Nothing runs on when this returns.
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
