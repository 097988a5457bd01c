"""Cancel requests from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """A signal that cancels requests immediately, even while they are waiting for the server.

    Each request registers a hook that aborts the request's call. Without a hook, a request would be
    cancelled only when the next piece arrives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], object]] = []
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Cancel the requests in flight and all later requests."""
        with self._lock:
            self._is_set = True
            hooks = list(self._hooks)
        for hook in hooks:
            hook()

    @contextmanager
    def calling(self, hook: Callable[[], object]) -> Iterator[None]:
        """Register `hook`, which `set` calls while the block is running.

        If the signal is already set, call `hook` immediately.
        """
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
