"""Workarounds for Triton's Python stub: read requests fast, and avoid crashes in responses.

Before python_backend #390 (December 2024), the stub frees tensor arrays on threads that do not hold
the GIL. With Python 3.12 this ends the process and thus the server; earlier versions may continue
with a corrupt heap. This happens in two places, both observed with Triton 2.51:

- `ResponseSender.send` frees tensors that are not requested outputs. `pick_requested` removes them.
- The stub's thread frees the responses of a business-logic request if Python has released them
  first. `StreamKeeper` therefore keeps them until that thread has released them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from .tensors import Array

# The stub's thread releases responses within tens of microseconds, or later on a busy machine.
KEPT_S = 5.0


def read_inputs(request: Any) -> dict[str, Array]:
    """Return a request's tensors by name.

    This is faster than `get_input_tensor_by_name`, which requests all tensors in each call.
    """
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def pick_requested(names: Container[str], tensors: Iterable[Any]) -> list[Any]:
    """Return the `tensors` that are in `names`, the request's `requested_output_names()`.

    Those names are all outputs if the client requests none by name.
    """
    return [tensor for tensor in tensors if tensor.name() in names]


class StreamKeeper:
    """Keeps the responses of business-logic requests until the stub has released them.

    `keep` releases expired responses, so an idle model keeps the responses of its last requests.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, responses: Any) -> None:
        """Keep `responses`, all of which have been read, and release expired responses."""
        now_s = self._clock()
        with self._lock:
            self._kept.append((now_s + self._kept_s, responses))
            num_due = sum(1 for until_s, _ in self._kept if until_s <= now_s)
            due = [self._kept.popleft() for _ in range(num_due)]
        # Release them outside the lock, because freeing a long response takes time.
        due.clear()
