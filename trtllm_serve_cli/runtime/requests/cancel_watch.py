"""Detect requests that clients have cancelled.

Triton's Python backend does not notify a model when a client cancels a request. The model must poll
the response sender of each request. Each poll is a round trip to the server, so one thread polls
the senders of all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..log import write_traceback


class WatchedRequest:
    """A request that `CancelWatch` checks for cancellation."""

    def __init__(self, sender: Any, on_cancel: Callable[[], None]) -> None:
        self.on_cancel = on_cancel
        self._sender = sender
        self._lock = threading.Lock()
        self._has_ended = False

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self._has_ended and bool(self._sender.is_cancelled())

    def end(self) -> None:
        """Stop checking the sender and wait for any check in progress to finish."""
        with self._lock:
            self._has_ended = True


class CancelWatch:
    """A thread that calls `on_cancel` for each watched request that a client has cancelled.

    The thread repeats the call every `period_s` seconds until the request is removed, because
    `on_cancel` may have no effect if the engine is not running the request yet.
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
        """Watch a request until `remove` is called."""
        watched = WatchedRequest(sender, on_cancel)
        with self._lock:
            self._watched.add(watched)
        self._has_work.set()
        return watched

    def remove(self, watched: WatchedRequest) -> None:
        """Stop watching a request. Its sender is not checked after this method returns.

        Call this method before sending the final response. If the sender is checked after the final
        response, the server reads freed memory (`ProcessIsRequestCancelled` in Triton's Python
        backend).
        """
        with self._lock:
            self._watched.discard(watched)
            if not self._watched and not self._closing.is_set():
                self._has_work.clear()
        watched.end()

    def close(self) -> None:
        """Stop the thread and wait for any check in progress to finish."""
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
                except Exception:  # an error in one request must not affect other requests
                    write_traceback()
                    self.remove(each)
