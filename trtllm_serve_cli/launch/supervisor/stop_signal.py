"""A stop request for a supervisor, safe to set in signal handlers."""

from __future__ import annotations

import contextlib
import queue


class StopSignal:
    """An event that a signal handler may set while its thread waits for the event.

    The handler runs in the waiting thread, which may already hold the lock of a `threading.Event`:
    setting such an event would deadlock.
    """

    def __init__(self) -> None:
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        """Set the event permanently."""
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait for the event, at most `timeout_s`, and return whether it is set.

        Only one thread may wait.
        """
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=timeout_s)
        return self._is_set
