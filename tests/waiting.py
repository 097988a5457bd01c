"""Waiting for what another process does, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_until(is_so: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
