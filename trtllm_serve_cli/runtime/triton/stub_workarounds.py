"""Ways with Triton's Python stub: to read a request fast, and to have it do responses no harm.

Before python_backend #390 (December 2024) it frees a tensor's array on threads that do not hold the
GIL. With Python 3.12 that ends the process, and so the server; earlier ones may survive it with
a damaged heap. It happens in two places, each seen with Triton 2.51:

- `ResponseSender.send` frees the tensors that the request did not ask for: so send none of them.
- The stub's own thread frees the responses of a business-logic request when Python let go of them
  first: so let go of them later than that thread, which is told when the last one is read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from .tensors import Array

# The stub's thread needs some tens of microseconds, or as long as the machine lets it wait.
KEPT_S = 5.0


def read_inputs(request: Any) -> dict[str, Array]:
    """A request's tensors by name.

    Triton's own `get_input_tensor_by_name` asks the stub for all of them each time.
    """
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def pick_requested(names: Container[str], tensors: Iterable[Any]) -> list[Any]:
    """Of `tensors`, those that a request asks for with its `requested_output_names()`.

    Triton puts all outputs there when the caller names none.
    """
    return [tensor for tensor in tensors if tensor.name() in names]


class StreamKeeper:
    """Holds on to the responses of business-logic requests until the stub has let go of them.

    The next `keep` after the time drops them, so an idle model holds those of its last requests.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, responses: Any) -> None:
        """Hold `responses`, which have been read to their end, for a while from now."""
        now_s = self._clock()
        with self._lock:
            self._kept.append((now_s + self._kept_s, responses))
            num_due = sum(1 for until_s, _ in self._kept if until_s <= now_s)
            due = [self._kept.popleft() for _ in range(num_due)]
        # Outside the lock: freeing a long answer takes a moment.
        due.clear()
