"""Start an engine worker for a model and restart it when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine import EngineLimits, EngineStats
from ..log import write_log
from ..stages import WORKER_READY, stage_fields
from .protocol import FrameNumbers, ProtocolError, read_frame
from .stack_limit import restore_stack_limit
from .worker_link import WorkerFailed, WorkerLink

_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
# Time, in seconds, after which a running worker is considered healthy. When a healthy worker dies,
# the back-off is reset.
_HEALTHY_AFTER_S = 60.0
# Time, in seconds, to wait for a worker to exit after its socket is closed. After this time, the
# worker is killed. If it were killed immediately, the engine's processes would keep their GPUs
# occupied.
_END_TIMEOUT_S = 15.0


class WorkerProcess(WorkerLink):
    """An engine worker process that is restarted when it dies, until `close` is called.

    - `python`: the interpreter that runs this package's worker, by default the first `python3` in
      PATH.
    - `command`: the command that starts a worker, without the worker's options. It overrides
      `python`.
    - `python_path`: the folder that contains the worker's package, by default the folder that
      contains this package.
    - `first_backoff_s`: the time in seconds before the first restart. The time doubles for each
      further attempt, up to 30 seconds.
    - `logs_start`: whether to log the durations of a worker's startup stages.
    - `on_state(is_up, num_restarts)`: a function that is called when the worker is ready, when it
      dies, and when an attempt to restart it fails.

    Exceptions in `on_stats` and `on_state` are logged.
    """

    def __init__(
        self,
        engine_kind: str,
        config: Mapping[str, Any],
        *,
        python: str = "",
        command: Sequence[str] = (),
        python_path: Path = Path(__file__).parents[2],
        first_backoff_s: float = _FIRST_BACKOFF_S,
        logs_start: bool = True,
        on_stats: Callable[[EngineStats], None] = lambda stats: None,
        on_state: Callable[[bool, int], None] = lambda is_up, num_restarts: None,
    ) -> None:
        super().__init__(on_stats)
        self._command = tuple(command) or _worker_command(python)
        self._python_path = python_path
        self._first_backoff_s = first_backoff_s
        self._logs_start = logs_start
        self._engine_kind = engine_kind
        self._config = dict(config)
        self._on_state = on_state
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: threading.Thread | None = None
        self._num_restarts = 0

    def start(self) -> None:
        """Start the worker and wait until it is ready.

        Raise `WorkerFailed` if the worker does not start.
        """
        self._spawn()
        self._notify(self._on_state, True, 0)
        self._monitor = threading.Thread(target=self._keep_alive, daemon=True)
        self._monitor.start()

    @property
    def pid(self) -> int | None:
        """The process id of the worker, or None if the worker is not connected."""
        return self._process.pid if self._process and self._sock else None

    def close(self) -> None:
        """Stop the worker. Requests in flight fail."""
        with self._lock:
            self._closing.set()
            process, sock = self._process, self._sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if process is not None:
            if sock is None:
                # `_sock` is not set while the worker is loading its engine or after the worker has
                # died, so closing the socket cannot stop the worker.
                process.kill()
            _wait_for_end(process)
        if self._monitor is not None:
            self._monitor.join(_END_TIMEOUT_S)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        started_at, started_s = time.time(), time.monotonic()
        with theirs:
            try:
                process = self._popen(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        numbers = FrameNumbers()
        try:
            ready = read_frame(ours, numbers)
        except (OSError, ProtocolError):
            ready = None
        if ready is not None and ready.get("is") == "ready":
            with self._lock:
                if not self._closing.is_set():
                    self.limits = EngineLimits(**ready["limits"])
                    self._numbers, self._sock = numbers, ours
                    if self._logs_start:
                        _log_start(started_at, time.monotonic() - started_s, ready)
                    return
        ours.close()
        exit_code = _wait_for_end(process)
        reason = ready and ready.get("why")
        raise WorkerFailed(
            f"the engine worker did not start: {reason or _describe_exit(exit_code)}"
        )

    def _popen(self, fd: int) -> subprocess.Popen[bytes]:
        command = (
            *self._command, "--engine", self._engine_kind,
            "--fd", str(fd), "--config", json.dumps(self._config),
        )  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self._python_path)}
        # Hold the lock, so that `close` either finds this process or prevents its start.
        with self._lock:
            if self._closing.is_set():
                raise WorkerFailed(
                    "the engine worker did not start, because the model is being unloaded"
                )
            restore_stack_limit()
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=(fd,), stdin=subprocess.DEVNULL, env=environment
                )
            except OSError as error:
                raise WorkerFailed(f"the engine worker did not start: {error}") from error
            return self._process

    def _keep_alive(self) -> None:
        backoff_s = self._first_backoff_s
        while not self._closing.is_set():
            started_s = time.monotonic()
            failure = self._read_until_closed()
            if self._closing.is_set():
                break
            assert self._process is not None
            exit_code = _wait_for_end(self._process)
            if failure:
                why = f"{failure}, so the engine worker is being restarted"
                write_log("E", why)
            else:
                died = f"the engine worker died ({_describe_exit(exit_code)})"
                why = f"{died} and is being restarted"
                write_log("E", f"{died}; restarting it")
            self._notify(self._on_state, False, self._num_restarts)
            self._fail_all(f"{why}; retry the request")
            if time.monotonic() - started_s > _HEALTHY_AFTER_S:
                backoff_s = self._first_backoff_s
            backoff_s = self._restart(backoff_s)
        self._fail_all("the engine worker was closed, because the model is being unloaded")
        self._response_threads.close()

    def _restart(self, backoff_s: float) -> float:
        """Try to restart the worker until it runs or `close` is called.

        Wait for `backoff_s` seconds before the first attempt. Return the back-off for the next
        restart.
        """
        while not self._closing.wait(backoff_s):
            backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)
            self._num_restarts += 1
            try:
                self._spawn()
            except WorkerFailed as error:
                write_log("E", str(error))
                self._notify(self._on_state, False, self._num_restarts)
                continue
            self._notify(self._on_state, True, self._num_restarts)
            break
        return backoff_s


def _worker_command(python: str) -> tuple[str, ...]:
    # By default, use the first `python3` in PATH, because Triton's stub also uses this
    # interpreter's packages.
    interpreter = python or shutil.which("python3") or sys.executable
    return interpreter, "-m", f"{Path(__file__).parents[1].name}.worker"


def _log_start(started_at: float, took_s: float, ready: Mapping[str, Any]) -> None:
    """Log the durations of a worker's startup stages from its `ready` message."""
    stages_s = ready.get("stages_s", {})
    # The worker's measurements start only after its interpreter has imported the worker's code.
    start_program_s = took_s - sum(stages_s.values())
    fields = stage_fields(started_at, {"start_program": start_program_s, **stages_s})
    write_log("I", WORKER_READY, **fields)


def _wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a worker to exit, or kill it after a timeout. Return its exit code."""
    try:
        return process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _describe_exit(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
