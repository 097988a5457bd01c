"""Plan the startup, readiness and liveness probes of Triton's container in a pod.

Triton's health endpoints do not show whether an engine generates tokens. The readiness and liveness
probes therefore run a program in the container that reads the heartbeats of the server's processes.
If the engine does not write heartbeats, the program requests a token.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from trtllm_serve_cli.launch.clusters.pod_script import PORTS, PULSES_FOLDER
from trtllm_serve_cli.launch.clusters.server_watch import limit_words, watch_command
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.runtime.watch.liveness import HangLimits

Manifest = dict[str, Any]

_STARTUP_PERIOD_S = 10
_READY_PERIOD_S = 5
_LIVE_PERIOD_S = 10
# Seconds by which the probe timeouts exceed the limits in `HangLimits`. The probe program may wait
# until a limit expires, and Python needs time to start.
_READY_MARGIN_S = 10
_LIVE_MARGIN_S = 30
# Grace period, in seconds, after a failed liveness probe. It is short because a hung server cannot
# finish its requests.
_HUNG_GRACE_PERIOD_S = 5


def plan_probes(model: Deployable, launch: LaunchOptions) -> Manifest:
    """Return the startup, readiness and liveness probes.

    If the model was imported with an earlier version of tllm, or if Triton's vLLM backend runs the
    engine, all probes only query Triton's health endpoints. If `hang_timeout_s` is 0, the liveness
    probe only queries Triton's health endpoint.
    """
    startup_failures = math.ceil(launch.timeout_s / _STARTUP_PERIOD_S)
    probes = {
        "startupProbe": _http("/v2/health/ready", _STARTUP_PERIOD_S, startup_failures),
        "readinessProbe": _http("/v2/health/ready", _READY_PERIOD_S, 3),
        "livenessProbe": _http("/v2/health/live", _LIVE_PERIOD_S, 3),
    }
    limits = HangLimits(hang_timeout_s=launch.hang_timeout_s, load_timeout_s=launch.timeout_s)
    if model.runtime is not None:
        probes["readinessProbe"] = _exec(model, "ready", limits)
        if limits.hang_timeout_s:
            probes["livenessProbe"] = _exec(model, "live", limits)
    probes["livenessProbe"]["terminationGracePeriodSeconds"] = _HUNG_GRACE_PERIOD_S
    return probes


def _http(path: str, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _exec(model: Deployable, question: Literal["ready", "live"], limits: HangLimits) -> Manifest:
    """Return a probe that fails if a part of the server does not respond within its time limit."""
    assert model.runtime is not None
    command = [
        *watch_command(model.runtime, "pod_probe"),
        question,
        f"--pulses={PULSES_FOLDER}",
        f"--http=127.0.0.1:{PORTS['http']}",
        f"--metrics=127.0.0.1:{PORTS['metrics']}",
        *limit_words(model, limits),
    ]
    if question == "ready":
        period_s, timeout_s = _READY_PERIOD_S, limits.busy[0] + _READY_MARGIN_S
    else:
        longest_s = max(each[1] for each in (limits.idle, limits.busy, limits.reload))
        period_s, timeout_s = _LIVE_PERIOD_S, longest_s + _LIVE_MARGIN_S
    return {
        "exec": {"command": command},
        # Probe an engine without heartbeats less often, because each probe generates a token.
        "periodSeconds": math.ceil(limits.token_period_s) if model.needs_tokens else period_s,
        "timeoutSeconds": math.ceil(timeout_s),
        "failureThreshold": 1,
    }
