"""Notices that the caller of a request has gone.

Triton's Python backend does not tell a model of a cancelled request: the model has to ask the
response sender of each, which is a round trip to the server. One thread asks for all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..log import write_traceback


class WatchedRequest:
    """A request that is watched."""

    def __init__(self, sender: Any, on_cancel: Callable[[], None]) -> None:
        self.on_cancel = on_cancel
        self._sender = sender
        self._lock = threading.Lock()
        self._has_ended = False

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self._has_ended and bool(self._sender.is_cancelled())

    def end(self) -> None:
        """Ask the sender no more; waits while it is being asked."""
        with self._lock:
            self._has_ended = True


class CancelWatch:
    """Calls `on_cancel` of a watched request in every period from when its caller has gone.

    It is called until the request is removed, since a first call may come too early to find what it
    is to stop.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._watched: set[WatchedRequest] = set()
        self._has_work = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, sender: Any, on_cancel: Callable[[], None]) -> WatchedRequest:
        """Watch a request until `remove`."""
        watched = WatchedRequest(sender, on_cancel)
        with self._lock:
            self._watched.add(watched)
        self._has_work.set()
        return watched

    def remove(self, watched: WatchedRequest) -> None:
        """Stop watching; its sender is not asked any more once this returns.

        That must be before the final response: a server that is asked about a sender which has
        ended looks at freed memory (`ProcessIsRequestCancelled` of Triton's Python backend).
        """
        with self._lock:
            self._watched.discard(watched)
            if not self._watched and not self._closing.is_set():
                self._has_work.clear()
        watched.end()

    def close(self) -> None:
        """End the watch; returns when nobody is being asked any more."""
        with self._lock:
            self._closing.set()
            self._has_work.set()
        self._thread.join()

    def _run(self) -> None:
        while self._has_work.wait() and not self._closing.wait(self._period_s):
            with self._lock:
                watched = list(self._watched)
            for each in watched:
                try:
                    if each.is_cancelled():
                        each.on_cancel()
                except Exception:  # one request's failure must not end the watch over all others
                    write_traceback()
                    self.remove(each)
