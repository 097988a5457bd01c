"""Monitor whether the parts of a running server respond."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.server_state import is_stopped
from trtllm_serve_cli.launch.supervisor.hangs.grpc_liveness import responds_on_grpc
from trtllm_serve_cli.launch.supervisor.hangs.liveness import (
    HangLimits,
    Sign,
    Silence,
    sign_of_pulse,
    update_silences,
)
from trtllm_serve_cli.launch.supervisor.hangs.token_probe import TokenProbe
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE, read_pulses

_FOLDER = "pulses"
_LIVE_PATH = "/v2/health/live"
# The timeout for a request to Triton.
_LIVE_TIMEOUT_S = 5.0


def pulse_environ(directory: Path) -> dict[str, str]:
    """Return the environment variable that specifies the folder for heartbeat files.

    It is a subfolder of the server's folder `directory`.
    """
    return {PULSES_VARIABLE: str(directory / _FOLDER)}


class HangWatch:
    """Monitors the processes of a server. `clock` returns the time in seconds."""

    def __init__(
        self, plan: LaunchPlan, limits: HangLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._clock = clock
        self._folder = plan.directory / _FOLDER
        self._silences: dict[str, Silence] = {}
        self._probes: list[_LivenessProbe] = []
        self._token_probes: list[TokenProbe] = []
        self._observed_s = 0.0

    def prepare(self) -> None:
        """Create the folder for heartbeat files, and remove the files of earlier processes.

        Keep the gateway's files, because the gateway keeps running when Triton is restarted.
        """
        # If the disk is full, continue without heartbeat files. Triton and the models that are
        # always loaded are then monitored only with requests, and the gateway is not monitored.
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
        for path in self._folder.glob("*"):
            if not path.name.startswith("gateway."):
                path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Start monitoring a server that has become ready."""
        self._silences = {}
        self._probes = [
            _LivenessProbe(address, responds, self._limits.probe_period_s, self._clock)
            for endpoint in (self._plan.endpoint, *self._plan.replicas)
            for address, responds in (
                (endpoint.http, partial(_responds_on_http, endpoint.http)),
                (
                    endpoint.grpc,
                    partial(responds_on_grpc, endpoint.grpc, endpoint.tls, _LIVE_TIMEOUT_S),
                ),
            )
        ]
        self._observed_s = self._clock()
        has_workers = any(pulse.role == "worker" for pulse in read_pulses(self._folder))
        self._token_probes = (
            [] if has_workers else [self._plan_probe(*each) for each in self._list_models()]
        )

    def _plan_probe(self, model: str, parts: tuple[str, ...]) -> TokenProbe:
        # The timeout must be longer than the time after which the engine counts as hung.
        timeout_s = 2 * (self._limits.hang_timeout_s or self._limits.load_timeout_s)
        return TokenProbe(
            self._plan.endpoint,
            model,
            parts,
            idle_s=self._limits.token_period_s,
            timeout_s=timeout_s,
            clock=self._clock,
        )

    def _list_models(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return each text model that is always loaded, and all Triton models of its repository."""
        if self._plan.model_control_mode == "explicit":
            return []
        return [
            (text_model, self._plan.parts_of(model))
            for text_model, model in zip(self._plan.text_models, self._plan.models, strict=True)
            if text_model in self._plan.loading
        ]

    def observe(self, triton_pid: int) -> list[Silence]:
        """Return the parts that are silent."""
        now_s = self._clock()
        self._silences = update_silences(
            self._silences, self._read_signs(triton_pid), now_s - self._observed_s
        )
        self._observed_s = now_s
        return [each for each in self._silences.values() if each.is_silent]

    def forget(self, silence: Silence) -> None:
        """Discard the observations of a part whose process was killed."""
        self._silences.pop(silence.sign.part, None)

    def _read_signs(self, triton_pid: int) -> Iterator[Sign]:
        for pulse in read_pulses(self._folder):
            sign = sign_of_pulse(pulse, self._limits, is_stopped=is_stopped(pulse.pid))
            if sign is not None:
                yield sign
        for probe in self._probes:
            yield Sign(
                f"triton {probe.address}",
                probe.count_responses(),
                f"Triton has not responded on {probe.address} for {self._limits.idle[0]:g} s",
                *self._limits.idle,
                "triton",
                triton_pid,
            )
        for token_probe in self._token_probes:
            if (mark := token_probe.read()) is not None:
                yield Sign(
                    f"token {token_probe.model}",
                    mark,
                    f"{token_probe.model} has not generated a token for {self._limits.busy[0]:g} s",
                    *self._limits.busy,
                    "triton",
                    triton_pid,
                )


class _LivenessProbe:
    """Sends health requests to one port of Triton, one at a time, each from its own thread.

    `responds` sends a request and returns whether Triton has responded.
    """

    def __init__(
        self,
        address: str,
        responds: Callable[[], bool],
        period_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.address = address
        self._responds = responds
        self._period_s = period_s
        self._clock = clock
        self._num_responses = 0
        self._due_s = 0.0
        self._thread: threading.Thread | None = None

    def count_responses(self) -> int:
        """Return the number of responses so far, and send the next request if it is due."""
        is_running = self._thread is not None and self._thread.is_alive()
        if not is_running and self._clock() >= self._due_s:
            self._due_s = self._clock() + self._period_s
            self._thread = threading.Thread(target=self._send, daemon=True)
            self._thread.start()
        return self._num_responses

    def _send(self) -> None:
        self._num_responses += self._responds()


def _responds_on_http(address: str) -> bool:
    # Any response shows that Triton is alive, even one with an error status.
    try:
        connection = http.client.HTTPConnection(address, timeout=_LIVE_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", _LIVE_PATH)
            connection.getresponse().read()
            return True
    except (OSError, http.client.HTTPException):
        return False
