"""Define a stop event that signal handlers can set safely."""

from __future__ import annotations

import contextlib
import queue


class StopSignal:
    """An event that a signal handler can set while the same thread is waiting for the event.

    With a `threading.Event`, the handler would deadlock if the waiting thread holds the event's
    lock.
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
        """Wait up to `timeout_s` for the event and return whether the event is set.

        Only one thread may wait.
        """
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=timeout_s)
        return self._is_set
