"""Workarounds for Triton's Python stub: read requests fast, and avoid crashes in responses.

Before python_backend #390 (December 2024), the stub frees tensor arrays on threads that do not hold
the GIL. With Python 3.12 this ends the process and thus the server; earlier versions may continue
with a corrupt heap. It happens in two places, both observed with Triton 2.51:

- `ResponseSender.send` frees tensors that are not requested outputs, so do not send them.
- The stub's thread frees the responses of a business-logic request if Python has released them
  first, so release them after that thread, which is notified when the last one is read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from .tensors import Array

# The stub's thread takes tens of microseconds, or longer on a busy machine.
KEPT_S = 5.0


def read_inputs(request: Any) -> dict[str, Array]:
    """Return a request's tensors by name.

    Triton's `get_input_tensor_by_name` requests all of them from the stub in each call.
    """
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def pick_requested(names: Container[str], tensors: Iterable[Any]) -> list[Any]:
    """Return those of `tensors` that are in `names`, a request's `requested_output_names()`.

    Triton sets it to all outputs if the client requests none by name.
    """
    return [tensor for tensor in tensors if tensor.name() in names]


class StreamKeeper:
    """Keeps the responses of business-logic requests until the stub has released them.

    `keep` releases the expired ones, so an idle model keeps those of its last requests.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, responses: Any) -> None:
        """Keep `responses`, which have been read to their end."""
        now_s = self._clock()
        with self._lock:
            self._kept.append((now_s + self._kept_s, responses))
            num_due = sum(1 for until_s, _ in self._kept if until_s <= now_s)
            due = [self._kept.popleft() for _ in range(num_due)]
        # Outside the lock, since freeing a long response takes time.
        due.clear()
