"""Wait for other processes, with a deadline."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import psutil

from trtllm_serve_cli.runtime.engine import SequenceUpdate, merge_updates


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Return whether all threads of the process have ended, reaped or not."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def take_whole(updates: queue.Queue[SequenceUpdate], timeout_s: float = 60.0) -> SequenceUpdate:
    """Return the merged updates of one sequence up to its end."""
    taken = [updates.get(timeout=timeout_s)]
    while taken[-1].finish_reason is None and taken[-1].error is None:
        taken.append(updates.get(timeout=timeout_s))
    (whole,) = merge_updates(taken)
    return whole
