"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_true: Callable[[], bool], deadline_s: float = 15.0) -> bool:
    """Whether `is_true` became true in time."""
    give_up_s = time.monotonic() + deadline_s
    while time.monotonic() < give_up_s:
        if is_true():
            return True
        time.sleep(0.05)
    return is_true()
