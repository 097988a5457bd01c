"""The model's side of an engine worker: starts it, talks to it, starts it again when it dies."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .engine import EngineLimits, EngineStats, GenerationRequest, SequenceUpdate
from .protocol import ProtocolError, encode_frame, read_frame

OnUpdate = Callable[[SequenceUpdate], None]
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
# A worker that lived this long was well: the next death starts again with the first back-off.
_WELL_AFTER_S = 60.0


class WorkerFailed(Exception):
    """The engine worker could not start; the message says why."""


class WorkerProcess:
    """One engine worker, kept alive until `close`.

    `on_stats` and `on_state(is_up, num_restarts)` are called from the reader thread.
    """

    def __init__(
        self,
        engine_kind: str,
        config: Mapping[str, Any],
        *,
        python: str = "",
        on_stats: Callable[[EngineStats], None] = lambda stats: None,
        on_state: Callable[[bool, int], None] = lambda is_up, num_restarts: None,
    ) -> None:
        # The interpreter that PATH finds first is the one whose packages Triton's stub uses too.
        self._python = python or shutil.which("python3") or sys.executable
        self._engine_kind = engine_kind
        self._config = dict(config)
        self._on_stats = on_stats
        self._on_state = on_state
        self._lock = threading.Lock()
        self._handlers: dict[int, OnUpdate] = {}
        self._ids = itertools.count(1)
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._num_restarts = 0

    def start(self) -> EngineLimits:
        """Start the worker and wait until its engine is loaded. Raises `WorkerFailed`."""
        limits = self._spawn()
        self._on_state(True, 0)
        threading.Thread(target=self._keep_alive, daemon=True).start()
        return limits

    @property
    def pid(self) -> int | None:
        """The process id of the worker that runs now, if one does."""
        return self._process.pid if self._process and self._sock else None

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        """Queue a request made of GenerationRequest's `fields`; returns its id.

        `on_update` is called from the reader thread for each update until one that finishes a
        sequence or has an error. Raises `WorkerFailed` while the worker is down.
        """
        request = GenerationRequest(id=next(self._ids), **fields)
        with self._lock:
            self._handlers[request.id] = on_update
        try:
            self._send({"do": "submit", "request": dataclasses.asdict(request)})
        except WorkerFailed:
            self.forget(request.id)
            raise
        return request.id

    def cancel(self, request_id: int) -> None:
        """End a request and free its slot; no update follows."""
        self.forget(request_id)
        with contextlib.suppress(WorkerFailed):
            self._send({"do": "cancel", "id": request_id})

    def forget(self, request_id: int) -> None:
        """Deliver no more updates of a request."""
        with self._lock:
            self._handlers.pop(request_id, None)

    def close(self) -> None:
        """End the worker; requests in flight fail."""
        self._closing.set()
        with self._lock:
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        frame = encode_frame(message)
        try:
            with self._lock:
                if self._sock is None:
                    raise WorkerFailed("the engine worker is being restarted; send it again soon")
                self._sock.sendall(frame)
        except OSError as error:
            raise WorkerFailed("the engine worker has just died; send it again soon") from error

    def _spawn(self) -> EngineLimits:
        ours, theirs = socket.socketpair()
        package = Path(__file__).parent
        command = (
            self._python, "-m", f"{package.name}.worker", "--engine", self._engine_kind,
            "--fd", str(theirs.fileno()), "--config", json.dumps(self._config),
        )  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(package.parent)}
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        try:
            first = read_frame(ours)
        except (OSError, ProtocolError):
            first = None
        if first is None or first.get("is") != "ready":
            ours.close()
            code = self._process.wait()
            told = first and first.get("why")
            raise WorkerFailed(f"the engine worker did not start: {told or _ending(code)}")
        with self._lock:
            self._sock = ours
        return EngineLimits(**first["limits"])

    def _keep_alive(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started_s = time.monotonic()
            self._read_until_closed()
            if self._closing.is_set():
                return
            assert self._process is not None
            why = f"the engine worker died ({_ending(self._process.wait())})"
            print(f"{why}; restarting it", file=sys.stderr, flush=True)
            self._on_state(False, self._num_restarts)
            self._fail_all(f"{why}; it is being restarted, send the request again")
            if time.monotonic() - started_s > _WELL_AFTER_S:
                backoff_s = _FIRST_BACKOFF_S
            while not self._closing.wait(backoff_s):
                backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)
                self._num_restarts += 1
                try:
                    self._spawn()
                except WorkerFailed as error:
                    print(str(error), file=sys.stderr, flush=True)
                    continue
                self._on_state(True, self._num_restarts)
                break

    def _read_until_closed(self) -> None:
        sock = self._sock
        assert sock is not None
        try:
            while (message := read_frame(sock)) is not None:
                for entry in message["updates"]:
                    self._deliver(SequenceUpdate.from_wire(entry))
                if "stats" in message:
                    self._on_stats(EngineStats(**message["stats"]))
        except (OSError, ProtocolError) as error:
            print(f"engine worker: {error}", file=sys.stderr, flush=True)
        with self._lock:
            self._sock = None
        sock.close()

    def _deliver(self, update: SequenceUpdate) -> None:
        with self._lock:
            handler = self._handlers.get(update.request_id)
        if handler is not None:
            handler(update)

    def _fail_all(self, why: str) -> None:
        with self._lock:
            handlers, self._handlers = self._handlers, {}
        for request_id, handler in handlers.items():
            handler(SequenceUpdate(request_id, error=why))


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
