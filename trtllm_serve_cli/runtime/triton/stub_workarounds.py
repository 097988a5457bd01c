"""Work around slow request reading, crashes and a deadlock in Triton's Python stub.

Before python_backend #390 (December 2024), the stub frees tensor arrays on threads that do not hold
the GIL. With Python 3.12, this bug ends the stub process and therefore the server. With earlier
versions of Python, the process may continue with a corrupt heap. The bug occurs in two places, both
observed with Triton 2.51:

- `ResponseSender.send` frees tensors that the client did not request. `pick_requested` removes
  these tensors before the call.
- A thread of the stub frees the responses to a business-logic request if Python has already
  released them. `StreamKeeper` therefore keeps the responses until this thread has released them.

If Triton is killed while a model publishes a metric, the stub can deadlock instead of exiting: the
thread that detected Triton's end waits for a lock, and the lock's owner waits for Triton's answer.
This was observed with Triton 2.51. `kill_stub_after_server` ends such a stub.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

from .tensors import Array

# The time for which responses are kept, in seconds. The stub usually releases a response within
# tens of microseconds, but needs more time on a busy machine.
KEPT_S = 5.0

_STUB = "triton_python_backend_stub"
# The stub checks once per second whether Triton is alive, and then releases its resources.
_EXIT_TIMEOUT_S = 5.0


def kill_stub_after_server() -> None:
    """Kill this process if it is a stub that has not exited a few seconds after Triton's end.

    In other processes, and on systems other than Linux, this function does nothing.
    """
    if sys.platform == "linux" and Path("/proc/self/exe").resolve().name == _STUB:
        with contextlib.suppress(OSError):  # kernels before 5.3 and some sandboxes lack pidfd_open
            kill_after(os.getppid(), _EXIT_TIMEOUT_S)


def kill_after(pid: int, delay_s: float) -> None:
    """Start a thread that kills this process `delay_s` seconds after the process `pid` has ended.

    The kernel's signal for a parent's end (PR_SET_PDEATHSIG) does not fit, because it is sent when
    the thread that forked the stub ends, and Triton's threads end before Triton does.
    """
    process = os.pidfd_open(pid)

    def wait() -> None:
        select.select([process], [], [])
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def read_inputs(request: Any) -> dict[str, Array]:
    """Return a request's tensors by name.

    Reading them together is faster than calling `get_input_tensor_by_name` for each name, because
    this function requests all tensors in each call.
    """
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def pick_requested(names: Container[str], tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors in `tensors` that the client requested.

    `names` is the result of the request's `requested_output_names()`. It contains all outputs if
    the client does not request outputs by name.
    """
    return [tensor for tensor in tensors if tensor.name() in names]


class StreamKeeper:
    """A buffer that keeps responses to business-logic requests until the stub has released them.

    Only `keep` releases expired responses, so an idle model keeps the responses to its last
    requests.
    """

    def __init__(self, kept_s: float = KEPT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, responses: Any) -> None:
        """Keep `responses`, and release kept responses that have expired.

        Call this method after reading all of `responses`.
        """
        now_s = self._clock()
        with self._lock:
            self._kept.append((now_s + self._kept_s, responses))
            num_due = sum(1 for until_s, _ in self._kept if until_s <= now_s)
            due = [self._kept.popleft() for _ in range(num_due)]
        # Release the responses outside the lock, because freeing a long response takes time.
        due.clear()
