"""What a supervisor writes down of its server, and what is true of it now.

A state file can outlive its supervisor (a crash, a reboot), so it is believed only as long as the
process that wrote it lives: same id, same start time.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

STATE_FILE = "state.json"
PLAN_FILE = "plan.json"

# A job may also wait in a queue, or nobody knows what has become of it.
Phase = Literal[
    "queued", "starting", "ready", "restarting", "stopping", "failed", "stopped", "unknown"
]


@dataclass(frozen=True, slots=True)
class ServerState:
    """One moment of a supervised server; times are seconds since the epoch.

    `why` says in a few lines why a server failed or is being restarted.
    """

    phase: Phase
    supervisor_pid: int
    supervisor_started_at: float
    server_pid: int | None = None
    ready_at: float | None = None
    restarts: int = 0
    why: tuple[str, ...] = ()

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return is_same_process(self.supervisor_pid, self.supervisor_started_at)


def write_state(directory: Path, state: ServerState) -> None:
    """Replace the state of the server in `directory` at once."""
    aside = directory / f".{STATE_FILE}.{os.getpid()}"
    aside.write_text(json.dumps(dataclasses.asdict(state), indent=2), encoding="utf-8")
    aside.replace(directory / STATE_FILE)


def read_state(directory: Path) -> ServerState | None:
    """The last state written, or None when there is none that can be read."""
    try:
        facts = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        return ServerState(**{**facts, "why": tuple(facts["why"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_same_process(pid: int, started_at: float) -> bool:
    """Whether the process `pid` is the one that started then, and no zombie."""
    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - started_at) < 1.0
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
