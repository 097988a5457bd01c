"""Work around crashes and slow access to request inputs in Triton's Python stub.

Stubs older than python_backend #390 (December 2024) free tensor arrays on threads that do not hold
the GIL. With Python 3.12, this bug crashes the stub process, and therefore the server. With earlier
versions of Python, the process may continue with a corrupt heap. The bug occurs in two places, both
observed with Triton 2.51:

- `ResponseSender.send` frees tensors that the client did not request. `pick_requested` removes
  these tensors before the call.
- A thread of the stub frees the responses to a BLS request if Python has already released them.
  `StreamKeeper` therefore keeps the responses until the thread has released them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from ..engine import InvalidRequest
from .tensors import Array

# Time, in seconds, to keep responses. The stub usually releases a response within tens of
# microseconds, but needs more time on a busy machine.
KEPT_S = 5.0


def read_inputs(request: Any) -> dict[str, Array]:
    """Return a request's input tensors, keyed by name.

    Reading all tensors in one call is faster than calling `get_input_tensor_by_name` for each name,
    because each `get_input_tensor_by_name` call fetches all tensors.

    Raise `InvalidRequest` with the tensor's name if a tensor is malformed. Other exceptions would
    fail all requests that Triton passed to `execute` in the same call.
    """
    return {tensor.name(): _read_tensor(tensor) for tensor in request.inputs()}


def _read_tensor(tensor: Any) -> Array:
    try:
        array: Array = tensor.as_numpy()
    except Exception as error:  # the stub's documentation does not list the exceptions
        raise InvalidRequest(
            f"{tensor.name()} is malformed: {error}; send content that matches the tensor's type "
            "and shape"
        ) from error
    return array


def pick_requested(names: Container[str], tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors in `tensors` that the client requested.

    `names` is the result of the request's `requested_output_names()`. It contains all outputs if
    the client does not request outputs by name.
    """
    return [tensor for tensor in tensors if tensor.name() in names]


class StreamKeeper:
    """A buffer that keeps responses to BLS requests until the stub has released them.

    Only `keep` releases expired responses, so an idle model keeps the responses to its last
    requests.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, responses: Any) -> None:
        """Keep `responses` and release kept responses that have expired.

        Call this method after reading all of `responses`.
        """
        now_s = self._clock()
        due = []
        with self._lock:
            self._kept.append((now_s + self._kept_s, responses))
            while self._kept and self._kept[0][0] <= now_s:
                due.append(self._kept.popleft())
        # Release the responses outside the lock, because freeing a long response takes time.
        due.clear()
