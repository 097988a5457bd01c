"""Check whether Triton responds to health requests."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable

from .liveness import HangLimits, Sign

# Request timeout, in seconds.
TIMEOUT_S = 5.0


class HealthProbe:
    """Sends health requests to a Triton port, one at a time, each in a separate thread.

    `responds` sends a request to `address` and returns whether Triton has responded as expected.
    `clock` returns the time in seconds. `period_s` is the minimum interval between requests, in
    seconds.
    """

    def __init__(
        self,
        address: str,
        responds: Callable[[], bool],
        clock: Callable[[], float],
        *,
        period_s: float,
    ) -> None:
        self.num_responses = 0
        self._address = address
        self._responds = responds
        self._clock = clock
        self._period_s = period_s
        self._due_s = 0.0
        self._thread: threading.Thread | None = None

    def read_sign(self, limits: HangLimits, triton_pid: int) -> Sign:
        """Return a `Sign` that shows whether Triton responds.

        Send the next health request if it is due.
        """
        is_running = self._thread is not None and self._thread.is_alive()
        if not is_running and self._clock() >= self._due_s:
            self._due_s = self._clock() + self._period_s
            self._thread = threading.Thread(target=self._send, daemon=True)
            self._thread.start()
        what = f"Triton has not responded on {self._address} for {limits.idle[0]:g} s"
        part = f"triton {self._address}"
        return Sign(part, self.num_responses, what, *limits.idle, "triton", triton_pid)

    def _send(self) -> None:
        self.num_responses += self._responds()


def responds_on_http(address: str) -> bool:
    """Return whether Triton sends a response, even one with an error status."""
    return _request_status(address, "/v2/health/live") is not None


def is_ready_on_http(address: str) -> bool:
    """Return whether Triton reports that it is ready."""
    return _request_status(address, "/v2/health/ready") == 200


def _request_status(address: str, path: str) -> int | None:
    """Return the status of the response to a GET request, or None if the request fails."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status
    return None
