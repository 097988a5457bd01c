"""Run a server's OpenAI-compatible gateway as a child process of the supervisor."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from trtllm_serve_cli.gateway.health import find_gateway_problem
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.hangs.watch import pulse_environ
from trtllm_serve_cli.launch.supervisor.server_processes import describe_exit
from trtllm_serve_cli.processes import SINGLE_THREADED, die_with_parent, last_lines

CONFIG_FILE = "gateway.json"
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
# If the gateway ran for longer than this before it died, the back-off is reset. In seconds.
_HEALTHY_AFTER_S = 60.0
# Number of health checks per gateway process. The number is high enough for the checks to reach
# every process with high probability.
_CHECKS_PER_PROCESS = 4
# Time limit, in seconds, for the gateway to exit after SIGTERM. The limit is short, because the
# server has already ended.
_EXIT_S = 5.0


class GatewayProcess:
    """The gateway process, which is restarted with back-off if it dies.

    `clock` returns the time in seconds.
    """

    def __init__(self, plan: LaunchPlan, clock: Callable[[], float] = time.monotonic) -> None:
        assert plan.gateway is not None
        self._plan = plan
        self._config = plan.gateway
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._backoff_s = _FIRST_BACKOFF_S
        self.num_restarts = 0
        # Why the gateway was not healthy at the last check, or "" if it was healthy.
        self.problem = ""

    @property
    def pid(self) -> int | None:
        """The ID of the latest process, or None before `start` and after `end`."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process. Raise `OSError` if it cannot be started."""
        self._started_s = self._clock()
        command = (sys.executable, "-m", "trtllm_serve_cli.gateway")
        with self._plan.gateway_log.open("ab") as log:
            self._process = subprocess.Popen(
                (*command, str(self._plan.directory / CONFIG_FILE)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**SINGLE_THREADED, **os.environ, **pulse_environ(self._plan.directory)},
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
            )

    def explain_exit(self) -> tuple[str, ...]:
        """Return how the process exited and the last lines of its log.

        Return an empty tuple if the process is running or was not started.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return ()
        lines = last_lines(self._plan.gateway_log, 3)
        return (f"the OpenAI-compatible gateway {describe_exit(code)}", *lines)

    def restart_if_dead(self) -> bool:
        """Restart the process if it has died and the back-off has elapsed.

        Return whether a restart was attempted.
        """
        if self._process is None or self._process.poll() is None:
            return False
        lasted_s = self._clock() - self._started_s
        if lasted_s > _HEALTHY_AFTER_S:
            self._backoff_s = _FIRST_BACKOFF_S
        if lasted_s < self._backoff_s:
            return False
        self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)
        self.num_restarts += 1
        with contextlib.suppress(OSError):
            self.start()
        return True

    def is_healthy(self) -> bool:
        """Return whether the gateway reports that all models can receive requests.

        Store the reason in `problem` if the gateway is not healthy.
        """
        # Check several times, because each check reaches only one of the gateway processes.
        is_single = self._config.num_processes == 1
        for _ in range(1 if is_single else self._config.num_processes * _CHECKS_PER_PROCESS):
            self.problem = find_gateway_problem(self._config)
            if self.problem:
                return False
        return True

    def begin_stop(self) -> None:
        """Make the gateway reject new requests, finish the requests in flight, and exit."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Terminate the process. Kill it if it is still running after 5 seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
