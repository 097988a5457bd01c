"""Free loopback ports for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

# Below the ephemeral ports of Linux (32768 and up), so that the ports of a test stay free until its
# server binds them. Each process of a parallel run has its own range.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_NUMBER = 22_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_FIRST = 10_000 + _PROCESS * _NUMBER


def free_ports(count: int) -> list[int]:
    """Return consecutive ports that are free and that no other test of this run uses."""
    row: list[int] = []
    while len(row) < count:
        port = next(_CANDIDATES)
        if (row and port != row[-1] + 1) or not _is_free(port):
            row = []
        else:
            row.append(port)
    return row


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as trial:
        trial.bind(("127.0.0.1", port))
        return True
    return False


# Cycle from a random start, since another run uses the same range.
_OFFSET = random.SystemRandom().randrange(_NUMBER)
_CANDIDATES = (_FIRST + number % _NUMBER for number in itertools.count(_OFFSET))
