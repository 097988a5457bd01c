"""Cancel requests from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """A signal that ends its requests immediately, even while they wait for the server.

    A flag alone would only take effect at the next piece.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], object]] = []
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Cancel the requests; those that have ended are not affected."""
        with self._lock:
            self._is_set = True
            hooks = list(self._hooks)
        for hook in hooks:
            hook()

    @contextmanager
    def calling(self, hook: Callable[[], object]) -> Iterator[None]:
        """Call `hook` when the cancellation is set during the block, or was set before."""
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
