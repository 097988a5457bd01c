"""Read and write the state that a supervisor records for its server.

After a crash or a reboot, a state file can outlive its supervisor. A phase other than "failed" and
"stopped" is therefore valid only while the supervisor is running. The machine's boot ID, the
process ID and the start time identify the supervisor. The start time is relative to the boot,
because wall-clock times change when the clock is adjusted. The status of a server on another
machine is unknown.

Containers of one machine have the same boot ID, but a process ID is valid only in its own PID
namespace. There, the lock that each supervisor holds shows whether it is running.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

STATE_FILE = "state.json"
PLAN_FILE = "plan.json"
# The file with the plan of a Slurm job, which the folders of other servers do not contain.
JOB_FILE = "job.json"
START_LOCK = "start.lock"
_SUPERVISOR_LOCK = "supervisor.lock"
# Prefix of the temporary files of `write_state`. A killed process leaves its file.
_TEMPORARY = f".{STATE_FILE}."
_STOP_FILE = "stop-timeout"
_REQUEST_FILE = "stop-requested"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Minimum file size in bytes. Files are padded, so that later updates need no free disk space.
_RESERVED_BYTES = 4096

# The phase of a server. Only Slurm jobs can be "queued". A server that was ready is "unresponsive"
# while one of its processes does not respond. "unknown" means that tllm cannot determine the phase.
Phase = Literal[
    "queued",
    "starting",
    "ready",
    "unresponsive",
    "restarting",
    "stopping",
    "failed",
    "stopped",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class ServerState:
    """A snapshot of a supervised server.

    - `supervisor_pid`, `supervisor_started_at`: the supervisor's process ID and start time. The
      start time is in seconds since the host's boot.
    - `server_pid`: process ID of the server's first process, or None if the server is not running.
    - `ready_at`: when the server last became ready, in seconds since the epoch, or None if it was
      never ready.
    - `why`: lines that explain why the server failed, is unresponsive or was last restarted. After
      a stop, `why` lists cancelled requests. For a Slurm job, `why` describes the job until the
      server is ready.
    - `host`, `boot_id`, `pid_namespace`: name and boot ID of the machine that runs the supervisor,
      and its PID namespace, which is different in each container.
    - `is_in_other_container`: true if the supervisor was running in another PID namespace of this
      machine when the state was read.
    - `in_flight`: while the server drains, maps each engine to its number of requests in flight.
    - `exit_code`: exit code of a server that exited without a stop request, otherwise None. If a
      signal killed the server, the code is the negated signal number.
    - `gateway_pid`, `gateway_restarts`: process ID and restart count of the OpenAI-compatible
      gateway.
    - `hangs`: number of processes that have hung.
    """

    phase: Phase
    supervisor_pid: int
    supervisor_started_at: float
    server_pid: int | None = None
    ready_at: float | None = None
    restarts: int = 0
    why: tuple[str, ...] = ()
    boot_id: str = ""
    in_flight: dict[str, int] = field(default_factory=dict)
    exit_code: int | None = None
    host: str = ""
    gateway_pid: int | None = None
    gateway_restarts: int = 0
    hangs: int = 0
    pid_namespace: str = ""
    is_in_other_container: bool = False

    @property
    def is_from_this_boot(self) -> bool:
        """True if the state was written on this machine since its last boot."""
        return self.boot_id == read_boot_id()

    @property
    def has_own_process_ids(self) -> bool:
        """True if the process IDs are those of this machine, boot and PID namespace."""
        return self.is_from_this_boot and self.pid_namespace in ("", read_pid_namespace())

    @property
    def is_elsewhere(self) -> bool:
        """True if the server may still be running elsewhere.

        It may be running on another machine, or in another container of this machine, that shares
        TLLM_HOME.
        """
        has_ended = self.phase in ("failed", "stopped")
        is_other_host = self.host not in ("", socket.gethostname()) and not self.is_from_this_boot
        return (is_other_host or self.is_in_other_container) and not has_ended

    @property
    def place(self) -> str:
        """The place where the server was started, for example "on node-a".

        A container may have the host name of its machine.
        """
        container = f"in another container of this machine (host name {self.host})"
        return container if self.is_in_other_container else f"on {self.host}"

    @property
    def is_supervised(self) -> bool:
        """True if the supervisor that wrote this state is still running in this container."""
        return self.has_own_process_ids and is_same_process(
            self.supervisor_pid, self.supervisor_started_at
        )


def describe_supervisor(phase: Phase) -> ServerState:
    """Return the initial state of a server that this process supervises."""
    return ServerState(
        phase,
        os.getpid(),
        started_at_s(os.getpid()),
        boot_id=read_boot_id(),
        host=socket.gethostname(),
        pid_namespace=read_pid_namespace(),
    )


def hold_supervisor_lock(directory: Path) -> None:
    """Hold the lock of the server in `directory` until this process ends.

    Do nothing if the lock file cannot be opened, or if the file system does not support locks.
    """
    with contextlib.suppress(OSError):
        fd = os.open(directory / _SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)


def _is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of `hold_supervisor_lock`."""
    try:
        with (directory / _SUPERVISOR_LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_state(directory: Path, state: ServerState) -> None:
    """Write the state of the server in `directory`.

    The write is atomic unless the disk is full. Raise `OSError` if the state cannot be written. The
    previous state then remains.
    """
    text = json.dumps(dataclasses.asdict(state), indent=2).encode()
    content = text.ljust(_RESERVED_BYTES)
    path, temporary = directory / STATE_FILE, directory / f"{_TEMPORARY}{os.getpid()}"
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno not in _DISK_FULL:
            raise
        _write_in_place(path, content)


def read_state(directory: Path) -> ServerState | None:
    """Return the state in `directory`, or None if the state file is missing or invalid."""
    try:
        fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        state = ServerState(**{**fields, "why": tuple(fields["why"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if state.is_from_this_boot and not state.has_own_process_ids:
        return dataclasses.replace(state, is_in_other_container=_is_locked(directory))
    return state


def write_stop_timeout(directory: Path, timeout_s: float) -> None:
    """Set the time that the supervisor waits for requests in flight before it stops the server."""
    _write_in_place(directory / _STOP_FILE, f"{timeout_s}".encode().ljust(_RESERVED_BYTES))


def _write_in_place(path: Path, content: bytes) -> None:
    """Overwrite or create a file.

    Overwriting a file with content of the same size needs no free disk space.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        file.write(content)
        file.truncate()


def read_stop_timeout_s(directory: Path, default_s: float) -> float:
    """Return the stop timeout in seconds, or `default_s` if no timeout is set.

    The stop timeout may change while the server is stopping.
    """
    try:
        return float((directory / _STOP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return default_s


def request_stop(directory: Path) -> None:
    """Record that a command other than `tllm restart` has requested a stop."""
    # If the file cannot be written, for example because the disk is full, the server must stop
    # nevertheless.
    with contextlib.suppress(OSError):
        (directory / _REQUEST_FILE).touch()


def is_stop_requested(directory: Path) -> bool:
    """Return whether a command other than `tllm restart` has requested a stop."""
    return (directory / _REQUEST_FILE).exists()


def clear_stop_request(directory: Path) -> None:
    """Remove the record of an earlier stop request."""
    (directory / _REQUEST_FILE).unlink(missing_ok=True)


def reset_state_files(directory: Path) -> None:
    """Remove a previous server's state and stop request. Preallocate the stop timeout file."""
    (directory / STATE_FILE).unlink(missing_ok=True)
    for temporary in directory.glob(f"{_TEMPORARY}*"):
        temporary.unlink(missing_ok=True)
    clear_stop_request(directory)
    _write_in_place(directory / _STOP_FILE, b" " * _RESERVED_BYTES)


def is_same_process(pid: int, started_s: float) -> bool:
    """Return whether process `pid` started at `started_s` and is not a zombie."""
    try:
        process = psutil.Process(pid)
        is_same = abs(started_at_s(pid) - started_s) < 0.1
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def started_at_s(pid: int) -> float:
    """Return a process start time in seconds since boot (Linux) or since the epoch (other systems).

    If the process does not exist, raise `OSError` on Linux and `psutil.Error` on other systems.
    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # Split after the second field, which is the process name in parentheses. The name may contain
    # any character. The start time is the 22nd field.
    ticks = stat.rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


@functools.cache
def read_boot_id() -> str:
    """Return this machine's boot ID, or "" if the system does not provide a boot ID."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@functools.cache
def read_pid_namespace() -> str:
    """Return the identity of this process's PID namespace, or "" if the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
