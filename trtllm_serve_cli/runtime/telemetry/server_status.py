"""Read the recorded state of a server.

The supervisor or the first rank of a Slurm job writes the record to `state.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The latest recorded state of a server.

    - `problem`: the reason why the server is unresponsive, or "" in any other phase.
    - `num_hangs`: the number of processes that were killed because they hung.
    - `num_restarts`: the number of server restarts.
    """

    is_ready: bool
    problem: str = ""
    num_hangs: int = 0
    num_restarts: int = 0


def read_server_status(directory: Path) -> ServerStatus | None:
    """Return the status of the server whose record is in `directory`.

    Return None if the record is missing or invalid.
    """
    try:
        state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        is_unresponsive = state["phase"] == "unresponsive"
        return ServerStatus(
            is_ready=state["phase"] == "ready",
            problem="; ".join(state["why"]) if is_unresponsive else "",
            num_hangs=int(state.get("hangs", 0)),
            num_restarts=int(state["restarts"]),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def find_server_problem(directory: str | None) -> str:
    """Return the reason why the server whose record is in `directory` is unresponsive.

    Return "" if the server's phase is not "unresponsive", or if the record is missing or invalid.
    `directory` is None if the server's state is not recorded.
    """
    status = None if directory is None else read_server_status(Path(directory))
    return "" if status is None else status.problem
