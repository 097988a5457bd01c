"""Notices that the caller of a request has gone.

Triton's Python backend does not tell a model of a cancelled request: the model has to ask the
response sender of each, which is a round trip to the server. One thread asks for all requests.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any


class CancelWatch:
    """Calls `on_cancel` of a watched request once its sender says that it is cancelled."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        # Held while a sender is asked: asking one that has sent its last response crashes Triton.
        self._asking = threading.Lock()
        self._watched: dict[int, tuple[Any, Callable[[], None]]] = {}
        self._has_work = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, sender: Any, on_cancel: Callable[[], None]) -> int:
        """Watch a request; returns the key for `remove`."""
        key = id(sender)
        with self._lock:
            self._watched[key] = (sender, on_cancel)
        self._has_work.set()
        return key

    def remove(self, key: int) -> None:
        """Stop watching; a key that is not watched is ignored.

        When it returns the sender is not being asked and will not be: call it before the last
        response is sent.
        """
        with self._lock:
            self._watched.pop(key, None)
            if not self._watched:
                self._has_work.clear()
        with self._asking:
            pass

    def close(self) -> None:
        """End the watch and wait until it has ended."""
        self._closing.set()
        self._has_work.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while self._has_work.wait() and not self._closing.wait(self._period_s):
            with self._lock:
                watched = list(self._watched.items())
            for key, (sender, on_cancel) in watched:
                try:
                    if self._is_gone(key, sender):
                        self.remove(key)
                        on_cancel()
                except Exception:  # one request's failure must not end the watch over all others
                    traceback.print_exc()
                    self.remove(key)

    def _is_gone(self, key: int, sender: Any) -> bool:
        with self._asking:
            return key in self._watched and bool(sender.is_cancelled())
