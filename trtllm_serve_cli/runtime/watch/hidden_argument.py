"""Hide a secret in the command line of a running process.

Other users can read the command lines of all processes in `/proc/PID/cmdline`. Triton accepts the
token for its restricted APIs only as a command-line argument. Triton copies the token when it
parses its arguments, so the original bytes in memory can be overwritten afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .processes import read_stat

# Indices in the result of `read_stat`. `man 5 proc_pid_stat` describes the fields.
_ARG_START, _ARG_END = 45, 46


def hide_in_command_lines(pids: Iterable[int], secret: str) -> dict[int, str]:
    """Overwrite `secret` in the command lines of the processes `pids`.

    For each process whose command line still contains `secret`, return the reason, keyed by
    process id.
    """
    visible = {}
    for pid in pids:
        why = "its memory did not change"
        try:
            hide_in_command_line(pid, secret)
        except OSError as error:
            why = error.strerror or str(error)
        if _contains(pid, secret):
            visible[pid] = why
    return visible


def hide_in_command_line(pid: int, secret: str) -> None:
    """Overwrite `secret` in the command line of process `pid`.

    Raise `OSError` if the process has ended, or if the caller cannot write to its memory. An
    unprivileged caller can write only to processes of the same user and, with Yama's default
    setting, only to itself and its descendants.
    """
    fields = read_stat(pid)
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        arguments = memory.read(end - start)
        position = arguments.find(secret.encode())
        while position >= 0:
            memory.seek(start + position)
            memory.write(b"*" * len(secret))
            position = arguments.find(secret.encode(), position + 1)


def _contains(pid: int, secret: str) -> bool:
    """Return whether the command line of process `pid` contains `secret`.

    Return False if the process has ended.
    """
    try:
        return secret.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
