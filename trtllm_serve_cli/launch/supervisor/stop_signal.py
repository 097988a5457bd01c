"""The request to end a supervisor, which may come by a signal."""

from __future__ import annotations

import contextlib
import queue


class StopSignal:
    """An event that a signal's handler may set while its own thread waits for it.

    The handler runs in the thread that waits, where a `threading.Event` would deadlock: that thread
    may already hold the event's lock.
    """

    def __init__(self) -> None:
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        """Set it for good."""
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, `timeout_s` at most, and return whether it is.

        Only one thread may wait.
        """
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=timeout_s)
        return self._is_set
