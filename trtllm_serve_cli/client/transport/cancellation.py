"""Ending requests from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """Once set, it ends every request that was given it, even one that waits for the server.

    A request whose caller only looked at a flag would go on until its next piece.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], object]] = []
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether the requests are to end."""
        return self._is_set

    def set(self) -> None:
        """End them; harmless when they have ended by themselves."""
        with self._lock:
            self._is_set = True
            hooks = list(self._hooks)
        for hook in hooks:
            hook()

    @contextmanager
    def calling(self, hook: Callable[[], object]) -> Iterator[None]:
        """Calls `hook` when it is set during the block, or was before."""
        with self._lock:
            self._hooks.append(hook)
            was_set = self._is_set
        try:
            if was_set:
                hook()
            yield
        finally:
            with self._lock:
                self._hooks.remove(hook)
