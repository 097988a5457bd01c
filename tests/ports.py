"""Free loopback ports for tests."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket

# Below those that Linux gives to whoever asks for any (32768 and up), so that what a test was given
# stays free until its server binds it.
_FIRST, _NUMBER = 10_000, 22_000


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody listens on now, and that no other test of this run is given."""
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


# Round and round, and not from the start: another run has the same ones.
_OFFSET = random.SystemRandom().randrange(_NUMBER)
_CANDIDATES = (_FIRST + number % _NUMBER for number in itertools.count(_OFFSET))
