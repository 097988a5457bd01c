"""Request a token from an engine that does not write heartbeats.

TensorRT engines run in Triton's C++ backend, and processes in containers cannot be monitored. Such
an engine is alive while the step counter in its metrics increases. If the counter does not change,
the engine is either idle or hung. The supervisor then requests one token, which a hung engine
cannot generate.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Container
from typing import Protocol

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import probe_model
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics
from trtllm_serve_cli.metrics.summary import summarize

_METRICS_TIMEOUT_S = 2.0
# The interval between reads of the step counter while waiting for a requested token.
_READ_PERIOD_S = 5.0


class SendProbe(Protocol):
    """A function that requests a token, and raises `TllmError` if it fails."""

    def __call__(self, endpoint: Endpoint, model: str, timeout_s: float, /) -> None: ...


def request_token(endpoint: Endpoint, model: str, timeout_s: float) -> None:
    """Request a token, or an embedding, over HTTP."""
    probe_model(endpoint, model, timeout_s, "http")


def count_steps(endpoint: Endpoint, parts: Container[str]) -> int:
    """Return the number of steps that the engines among the Triton models `parts` have completed.

    Return 0 if the number is unknown.
    """
    with contextlib.suppress(TllmError):
        page = fetch_metrics(endpoint.metrics, _METRICS_TIMEOUT_S)
        engines = summarize(parse_metrics(page, 0.0)).engines
        return sum(each.iteration or 0 for each in engines if each.model in parts)
    return 0


class TokenProbe:
    """Requests tokens from one model. Each request runs in a thread.

    `parts` are the names of all Triton models in the model's repository. If the engine among them
    completes no step for `idle_s` seconds, the probe requests a token with a timeout of `timeout_s`
    seconds. `clock` returns the time in seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        parts: Container[str],
        *,
        idle_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        send: SendProbe = request_token,
        count: Callable[[Endpoint, Container[str]], int] = count_steps,
    ) -> None:
        self.model = model
        self._endpoint = endpoint
        self._parts = parts
        self._idle_s = idle_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._send_probe = send
        self._count = count
        self._num_steps = 0
        self._num_responses = 0
        self._read_due_s = 0.0
        self._probe_due_s = clock() + idle_s
        self._thread: threading.Thread | None = None

    def read(self) -> tuple[int, int] | None:
        """Return a mark that changes while the engine is alive.

        Return None if no request for a token is in flight. Send a request if one is due.
        """
        now_s = self._clock()
        is_waiting = self._thread is not None and self._thread.is_alive()
        if is_waiting:
            if now_s >= self._read_due_s:
                self._read_due_s = now_s + _READ_PERIOD_S
                self._num_steps = self._count(self._endpoint, self._parts)
            return self._num_steps, self._num_responses
        if now_s >= self._probe_due_s:
            self._probe_due_s = now_s + self._idle_s
            num_steps = self._count(self._endpoint, self._parts)
            if num_steps in (0, self._num_steps):
                self._thread = threading.Thread(target=self._probe, daemon=True)
                self._thread.start()
            self._num_steps = num_steps
        return None

    def _probe(self) -> None:
        # An error also counts as a response, because the engine may reject the prompt.
        with contextlib.suppress(TllmError):
            self._send_probe(self._endpoint, self.model, self._timeout_s)
        self._num_responses += 1
