"""Write heartbeats to small files that the server's supervisor reads.

The folder `$TLLM_PULSES` contains one file for each model process, gateway process and engine
worker. If a process hangs, the counts in its file stop changing. A hung process cannot block the
supervisor, because reading a file does not require a response from the process.

The process that creates a file locks it. The kernel releases the lock when the process exits, so
the supervisor can ignore the files of unloaded models. The model that starts an engine worker
creates the worker's file, so the supervisor also detects missing workers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, cast

PULSES_VARIABLE = "TLLM_PULSES"
# A process that receives this signal writes the stacks of its threads to the server's log.
STACKS_SIGNAL = signal.SIGUSR2
# The heartbeat interval of model and gateway processes, in seconds. Idle engine workers also write
# a heartbeat about every 0.5 s.
PERIOD_S = 0.5
_RECORD = struct.Struct("<6q")

Role = Literal["model", "worker", "gateway"]


class PulseState(IntEnum):
    """The activity of a process.

    - `LOADING`: the process has not finished loading for the first time.
    - `IDLE`: the process is responsive and counts heartbeats.
    - `BUSY`: the engine worker is processing requests. It counts steps instead of heartbeats.
    - `FAILED`: the engine worker has died, and its replacement has not loaded the engine yet.
    - `ENDED`: the model process has exited. Only `read_pulses` with `reports_ended` returns this
      state.
    """

    LOADING = 0
    IDLE = 1
    BUSY = 2
    FAILED = 3
    ENDED = 4


@dataclass(frozen=True, slots=True)
class Pulse:
    """The content of a heartbeat file.

    - `num_beats`: the number of heartbeats. It increases only in the state `IDLE`.
    - `num_updates`: the number of engine steps that returned updates.
    - `iteration`: the iteration number from the engine's latest statistics.
    - `num_in_flight`: the number of client requests that the engine is processing.
    """

    role: Role
    model: str
    pid: int
    state: PulseState
    num_beats: int = 0
    num_updates: int = 0
    iteration: int = 0
    num_in_flight: int = 0


class PulseWriter:
    """Writes a process's heartbeats to a file, or discards them if `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._record: mmap.mmap | bytearray = bytearray(_RECORD.size)
        self._num_beats = self._num_updates = self._iteration = 0
        if path is not None:
            # Continue without the file if it was removed.
            with contextlib.suppress(OSError), path.open("r+b") as file:
                self._record = mmap.mmap(file.fileno(), _RECORD.size)

    def beat(self) -> None:
        """Count a heartbeat and set the state to `IDLE`."""
        self._num_beats += 1
        self._write(PulseState.IDLE, 0)

    def work(self, num_in_flight: int) -> None:
        """Set the state to `BUSY`, with `num_in_flight` client requests.

        The engine may be busy without client requests, for example with a self-test.
        """
        self._write(PulseState.BUSY, num_in_flight)

    def note_updates(self) -> None:
        """Count an engine step that has returned updates.

        The next call to `work`, `beat` or `fail` writes the count to the file.
        """
        self._num_updates += 1

    def note_iteration(self, iteration: int) -> None:
        """Store the iteration number from the engine's latest statistics.

        The next call to `work`, `beat` or `fail` writes the number to the file.
        """
        self._iteration = iteration

    def fail(self) -> None:
        """Record that the engine worker has died. The model process calls this method."""
        self._write(PulseState.FAILED, 0)

    def _write(self, state: PulseState, num_in_flight: int) -> None:
        counts = (self._num_beats, self._num_updates, self._iteration)
        _RECORD.pack_into(self._record, 0, os.getpid(), state, *counts, num_in_flight)


class PulseFile:
    """The heartbeat file of a process. `close` removes the file.

    `path` is None if `$TLLM_PULSES` is not set, or if the file could not be created.
    """

    def __init__(self, role: Role, model: str) -> None:
        self.path: Path | None = None
        self._fd = -1
        if folder := os.environ.get(PULSES_VARIABLE):
            with contextlib.suppress(OSError):
                self._create(Path(folder, f"{role}.{model}.{os.getpid()}.{time.monotonic_ns()}"))

    def _create(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}")
        self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Allocate the whole file now. On a full disk, a later write to the mapped file would kill
        # the process.
        try:
            os.write(self._fd, bytes(_RECORD.size))
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.path = path

    def close(self) -> None:
        """Remove the file. If it cannot be removed, leave it to the supervisor."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def start_beating(role: Role, model: str) -> None:
    """Write heartbeats for this process from a separate thread until the process exits.

    If `$TLLM_PULSES` is not set or the file cannot be created, write no heartbeats. Always register
    the `STACKS_SIGNAL` handler.
    """
    register_stacks_signal()
    file = PulseFile(role, model)
    if file.path is None:
        return
    # Nothing closes the file, so it stays open and locked until the process exits.
    writer = PulseWriter(file.path)

    def beat() -> None:
        while True:
            writer.beat()
            time.sleep(PERIOD_S)

    threading.Thread(target=beat, daemon=True, name="pulse").start()


def register_stacks_signal() -> None:
    """Register a `STACKS_SIGNAL` handler that writes the stacks of all threads to stderr."""
    # If stderr is unusable, no handler is registered and the signal kills the process. The
    # supervisor kills hung processes anyway.
    with contextlib.suppress(ValueError, RuntimeError, OSError, AttributeError):
        faulthandler.register(STACKS_SIGNAL, all_threads=True)


def read_pulses(folder: Path, *, reports_ended: bool = False) -> Iterator[Pulse]:
    """Yield the heartbeats in `folder` and remove files whose creators have exited.

    If `reports_ended` is set, keep the files of exited model processes and yield these processes as
    `ENDED`. Set `reports_ended` only for servers that never unload a model.
    """
    paths: list[Path] = []
    # If the folder cannot be listed, no process counts as hung. A disk error must not end the
    # observer, because the server would end with it.
    with contextlib.suppress(OSError):
        paths = sorted(folder.glob("[!.]*.*.*.*"))
    for path in paths:
        role, _, rest = path.name.partition(".")
        model, pid, _ = rest.rsplit(".", 2)
        # Ignore files that are removed or truncated while they are read.
        with contextlib.suppress(OSError, ValueError, struct.error):
            if (record := _read_record(path)) is not None:
                process, state, *counts = record
                yield Pulse(cast(Role, role), model, process, PulseState(state), *counts)
            elif reports_ended and role == "model":
                yield Pulse("model", model, int(pid), PulseState.ENDED)
            else:
                path.unlink(missing_ok=True)


def _read_record(path: Path) -> tuple[int, ...] | None:
    """Return the record in a file, or None if the process that created the file has exited.

    Raise `OSError` or `struct.error` if the file cannot be read or is too short.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _RECORD.unpack(file.read(_RECORD.size))
    return None
