"""Request a token from an engine that does not write heartbeats.

TensorRT engines run in Triton's C++ backend and write no heartbeats. The supervisor also cannot
monitor the processes of engines in containers. An engine is alive while the step counter in its
metrics increases. If the counter does not change, the engine is either idle or hung. To
distinguish the two states, `TokenProbe` requests a token, which a hung engine cannot generate.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Container
from urllib.parse import quote

from ..telemetry.families import STEPS
from .liveness import HangLimits, Sign

_METRICS_TIMEOUT_S = 2.0
# Minimum interval, in seconds, between reads of the step counter while a request is in flight.
_READ_PERIOD_S = 5.0
# The groups capture the model and the number of steps. The order of the labels may vary.
_STEPS = re.compile(
    rf'^{STEPS.name}\{{(?=[^}}]*="iteration_counter")(?=[^}}]*\bmodel="([^"]*)")[^}}]*\}} (\S+)$',
    re.MULTILINE,
)


def request_token(address: str, model: str, inputs: str, timeout_s: float) -> None:
    """Request a response from a text model over HTTP. Return after the response or an error.

    `inputs` contains the model's inputs as a JSON object.
    """
    path = f"/v2/models/{quote(model, safe='')}/generate_stream"
    _send(address, "POST", path, timeout_s, inputs)


def count_steps(address: str, parts: Container[str] | None = None) -> int:
    """Return the number of completed engine steps of the Triton models `parts`.

    If `parts` is None, count the steps of all engines. Return 0 if the number is unknown. `address`
    is the address of Triton's metrics endpoint.
    """
    page = _send(address, "GET", "/metrics", _METRICS_TIMEOUT_S)
    return sum(
        int(float(number))
        for model, number in _STEPS.findall(page)
        if parts is None or model in parts
    )


def _send(address: str, method: str, path: str, timeout_s: float, body: str | None = None) -> str:
    """Return the body of the response, or "" if the request fails."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            return connection.getresponse().read().decode(errors="replace")
    return ""


class TokenRequest:
    """A token request that runs `send` in a separate thread.

    `count` returns the number of completed engine steps. `clock` returns the time in seconds.
    """

    def __init__(
        self, model: str, send: Callable[[], None], count: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._model = model
        self._count = count
        self._clock = clock
        self._num_steps = 0
        self._read_due_s = 0.0
        self._thread = threading.Thread(target=send, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True if the request has ended.

        A failed request has also ended, for example if the engine rejected the prompt.
        """
        return not self._thread.is_alive()

    def read_sign(self, limits: HangLimits, triton_pid: int) -> Sign:
        """Return a `Sign` that shows whether the engine is making progress.

        `Sign.mark` changes when the engine completes a step and when the request ends. The step
        counter is read at most once every 5 seconds.
        """
        is_over = self.is_over
        if not is_over and self._clock() >= self._read_due_s:
            self._read_due_s = self._clock() + _READ_PERIOD_S
            self._num_steps = self._count()
        what = f"{self._model} has not generated a token for {limits.busy[0]:g} s"
        mark = (self._num_steps, is_over)
        return Sign(f"token {self._model}", mark, what, *limits.busy, "triton", triton_pid)


class TokenProbe:
    """Requests tokens from one model.

    If the engine does not complete a step within `idle_s` seconds, or if the number of steps is
    unknown, the probe calls `send`, which requests a token. `count` and `clock` have the same
    meaning as in `TokenRequest`.
    """

    def __init__(
        self,
        model: str,
        send: Callable[[], None],
        count: Callable[[], int],
        *,
        idle_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._send = send
        self._count = count
        self._idle_s = idle_s
        self._clock = clock
        self._num_steps = 0
        self._due_s = clock() + idle_s
        self._request: TokenRequest | None = None

    def read_sign(self, limits: HangLimits, triton_pid: int) -> Sign | None:
        """Return the `Sign` of the token request in flight, if any.

        If no request is in flight, send a request if one is due, and return None.
        """
        if self._request is not None and not self._request.is_over:
            return self._request.read_sign(limits, triton_pid)
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + self._idle_s
            num_steps = self._count()
            if num_steps in (0, self._num_steps):
                self._request = TokenRequest(self._model, self._send, self._count, self._clock)
            self._num_steps = num_steps
        return None
