"""What a supervisor writes down of its server, and what is true of it now.

A state file can outlive its supervisor (a crash, a reboot), so it is believed only as long as the
process that wrote it lives: same boot of the machine, same id, same start. The start is counted
from the boot, since a clock that is set moves all times of day. Of a server on another machine
nothing is known.
"""

from __future__ import annotations

import dataclasses
import errno
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
_STOP_FILE = "stop-timeout"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# What is written is shorter; its file is as long from the start, so a full disk does not matter.
_RESERVED_BYTES = 4096

# A job may also wait in a queue, or nobody knows what has become of it.
Phase = Literal[
    "queued", "starting", "ready", "restarting", "stopping", "failed", "stopped", "unknown"
]


@dataclass(frozen=True, slots=True)
class ServerState:
    """One moment of a supervised server; times are seconds since the epoch.

    `supervisor_started_at` alone counts from the boot `boot_id` of the machine `host`. `why` says
    in a few lines why a server failed or is being restarted, or what became of requests when it was
    stopped; `in_flight` are those that it waits for: engine -> how many. `exit_code` is how it
    ended by itself, negative for a signal.
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

    @property
    def is_from_this_boot(self) -> bool:
        """Whether the machine has not been started anew since."""
        return self.boot_id == read_boot_id()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another machine, which shares this home, wrote this and did not tell its end."""
        has_ended = self.phase in ("failed", "stopped")
        is_other_host = self.host not in ("", socket.gethostname())
        return is_other_host and not has_ended and not self.is_from_this_boot

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return self.is_from_this_boot and is_same_process(
            self.supervisor_pid, self.supervisor_started_at
        )


def describe_supervisor(phase: Phase) -> ServerState:
    """The state of a server whose supervisor is this process."""
    return ServerState(
        phase,
        os.getpid(),
        started_at_s(os.getpid()),
        boot_id=read_boot_id(),
        host=socket.gethostname(),
    )


def write_state(directory: Path, state: ServerState) -> None:
    """Replace the state of the server in `directory` at once, on a full disk, too."""
    text = json.dumps(dataclasses.asdict(state), indent=2).encode()
    content = text.ljust(_RESERVED_BYTES)
    path, temporary = directory / STATE_FILE, directory / f".{STATE_FILE}.{os.getpid()}"
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        temporary.unlink(missing_ok=True)
        _write_in_place(path, content)


def read_state(directory: Path) -> ServerState | None:
    """The last state written, or None when there is none that can be read."""
    try:
        fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        return ServerState(**{**fields, "why": tuple(fields["why"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_stop_timeout(directory: Path, timeout_s: float) -> None:
    """Say how long requests in flight may still take, to a supervisor that is to stop."""
    _write_in_place(directory / _STOP_FILE, f"{timeout_s}".encode().ljust(_RESERVED_BYTES))


def _write_in_place(path: Path, content: bytes) -> None:
    """No new room is needed where a file lies that is as long already."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        file.write(content)
        file.truncate()


def read_stop_timeout_s(directory: Path, default_s: float) -> float:
    """What was said last, which may change while a server is stopping; or else `default_s`."""
    try:
        return float((directory / _STOP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return default_s


def reset_state_files(directory: Path) -> None:
    """Remove what was said of a former server in `directory`, and make room for what will be."""
    (directory / STATE_FILE).unlink(missing_ok=True)
    _write_in_place(directory / _STOP_FILE, b" " * _RESERVED_BYTES)


def is_same_process(pid: int, started_s: float) -> bool:
    """Whether the process `pid` is the one that started then, and no zombie."""
    try:
        process = psutil.Process(pid)
        is_same = abs(started_at_s(pid) - started_s) < 0.1
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def started_at_s(pid: int) -> float:
    """When a process started, in seconds since the boot (elsewhere than on Linux, the epoch)."""
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The second field is the name, in which anything may stand; the 22nd is the start.
    ticks = stat.rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


@functools.cache
def read_boot_id() -> str:
    """What Linux calls this boot of the machine; "" elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
