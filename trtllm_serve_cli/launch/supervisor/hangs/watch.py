"""Detect the parts of a running server that do not respond."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import probe_model
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.hangs.grpc_liveness import responds_on_grpc
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE, read_pulses
from trtllm_serve_cli.runtime.watch.health_probe import TIMEOUT_S, HealthProbe, responds_on_http
from trtllm_serve_cli.runtime.watch.liveness import (
    HangLimits,
    Observer,
    Sign,
    Silence,
    read_pulse_signs,
)
from trtllm_serve_cli.runtime.watch.token_probe import TokenProbe, count_steps

_FOLDER = "pulses"


def pulse_environ(directory: Path) -> dict[str, str]:
    """Return the environment variable with the heartbeat folder of the server in `directory`."""
    return {PULSES_VARIABLE: str(directory / _FOLDER)}


class HangWatch:
    """Monitors a server's processes. `clock` returns the time in seconds."""

    def __init__(
        self, plan: LaunchPlan, limits: HangLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._clock = clock
        self._folder = plan.directory / _FOLDER
        self._observer = Observer(clock)
        self._probes: list[HealthProbe] = []
        self._token_probes: list[TokenProbe] = []

    def prepare(self) -> None:
        """Create the folder for heartbeat files and remove the files of earlier processes.

        Keep the gateway's files, because the gateway keeps running when Triton is restarted.
        """
        # If the disk is full, continue without heartbeat files. The supervisor then sends probe
        # requests to Triton and to the models that are always loaded. It does not monitor the
        # gateway. `read_pulses` ignores the files of earlier processes, which are not locked.
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*"):
                if not path.name.startswith("gateway."):
                    path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Start monitoring a server that has become ready."""
        self._probes = [
            HealthProbe(address, responds, self._clock, period_s=self._limits.probe_period_s)
            for endpoint in (self._plan.endpoint, *self._plan.replicas)
            for address, responds in (
                (endpoint.http, partial(responds_on_http, endpoint.http)),
                (
                    endpoint.grpc,
                    partial(responds_on_grpc, endpoint.grpc, endpoint.tls, TIMEOUT_S),
                ),
            )
        ]
        self._observer = Observer(self._clock)
        has_workers = any(pulse.role == "worker" for pulse in read_pulses(self._folder))
        self._token_probes = (
            [] if has_workers else [self._plan_probe(*each) for each in self._list_models()]
        )

    def _plan_probe(self, model: str, parts: tuple[str, ...]) -> TokenProbe:
        # The request timeout must be longer than the engine's hang timeout.
        timeout_s = 2 * (self._limits.hang_timeout_s or self._limits.load_timeout_s)
        endpoint = self._plan.endpoint
        return TokenProbe(
            model,
            partial(_request_response, endpoint, model, timeout_s),
            partial(count_steps, endpoint.metrics, parts),
            idle_s=self._limits.token_period_s,
            clock=self._clock,
        )

    def _list_models(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return each text model that is always loaded, with the Triton models in its repository.

        In explicit model control mode, return no models, because any model can be unloaded.
        """
        if self._plan.model_control_mode == "explicit":
            return []
        return [
            (text_model, self._plan.parts_of(model))
            for text_model, model in zip(self._plan.text_models, self._plan.models, strict=True)
            if text_model in self._plan.loading
        ]

    def observe(self, triton_pid: int) -> list[Silence]:
        """Return the parts of the server that do not respond."""
        silences = self._observer.observe(self._read_signs(triton_pid))
        return [each for each in silences if each.is_silent]

    def forget(self, silence: Silence) -> None:
        """Discard the observations of a part after its process was killed."""
        self._observer.forget(silence)

    def _read_signs(self, triton_pid: int) -> Iterator[Sign]:
        yield from read_pulse_signs(self._folder, self._limits)
        for probe in self._probes:
            yield probe.read_sign(self._limits, triton_pid)
        for token_probe in self._token_probes:
            if (sign := token_probe.read_sign(self._limits, triton_pid)) is not None:
                yield sign


def _request_response(endpoint: Endpoint, model: str, timeout_s: float) -> None:
    """Request a token or an embedding over HTTP and ignore errors."""
    with contextlib.suppress(TllmError):
        probe_model(endpoint, model, timeout_s, "http")
