"""Read the states of processes on this machine from `/proc`."""

from __future__ import annotations

import contextlib
from pathlib import Path

# Indices in the result of `read_stat`. `man 5 proc_pid_stat` describes the fields.
_STATE, _PARENT = 0, 1


def read_stat(pid: int) -> list[str]:
    """Return the fields that follow the process name in `/proc/PID/stat`.

    Raise `OSError` if the process does not exist. The name is in parentheses and may contain any
    character.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def is_stopped(pid: int) -> bool:
    """Return whether process `pid` is suspended by a signal such as SIGSTOP."""
    return _read_state(pid) == "T"


def is_zombie(pid: int) -> bool:
    """Return whether process `pid` has ended but has not been reaped by its parent."""
    return _read_state(pid) == "Z"


def _read_state(pid: int) -> str:
    """Return the state letter of process `pid`, or "" if the process does not exist."""
    with contextlib.suppress(OSError):
        return read_stat(pid)[_STATE]
    return ""


def list_descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of process `pid`."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            children.setdefault(int(read_stat(int(path.name))[_PARENT]), []).append(int(path.name))
    found, parents = [], [pid]
    while parents:
        parents = [child for parent in parents for child in children.get(parent, ())]
        found += parents
    return found
