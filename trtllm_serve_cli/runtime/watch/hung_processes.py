"""Dump the stack traces of hung processes and kill the processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from ..pulse import STACKS_SIGNAL
from .liveness import Silence
from .processes import is_zombie

# Time, in seconds, for the processes to write their stack traces.
_STACKS_S = 1.0


def write_stacks(hanging: Iterable[Silence]) -> None:
    """Make the hung processes write the stack traces of their threads to the server log.

    Skip Triton, because it has no handler for the signal and would be killed. Wait 1 s for the
    other processes.
    """
    pids = [each.sign.pid for each in hanging if each.sign.owner != "triton"]
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, STACKS_SIGNAL)
    if pids:
        time.sleep(_STACKS_S)


def kill_alone(silence: Silence) -> bool:
    """Kill a hung engine worker or gateway. Its parent restarts it, and the server keeps running.

    Return False if the hung process is neither an engine worker nor a gateway, is a zombie, or
    cannot be killed. In these cases, the whole server must be restarted.
    """
    pid = silence.sign.pid
    if silence.sign.owner not in ("worker", "gateway") or is_zombie(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True
