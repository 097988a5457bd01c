"""Connect to and accept on abstract sockets, and check that a peer runs as the same user.

An abstract socket has no file and therefore no file permissions. Any user can connect to it, and
any user can bind a free name, for example the name of a worker that has just exited. Both sides of
a connection must therefore check the peer.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator

from ..log import write_log

_CREDENTIALS = struct.Struct("3i")
# The errors of `accept` after the listener was closed or shut down.
_CLOSED = (errno.EBADF, errno.EINVAL)
# Pause, in seconds, after another error of `accept`, which usually returns again immediately.
_RETRY_S = 0.2


def connect(name: str, timeout_s: float | None) -> socket.socket:
    """Return a socket that is connected to the abstract socket `name`.

    `timeout_s` is the socket's timeout. Raise `PermissionError` if the listener runs as another
    user, or another `OSError` if the connection fails, for example because no process listens on
    the socket.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"\0{name}")
        if not is_same_user(sock):
            raise PermissionError(f"the listener on the socket {name} runs as another user")
    except OSError:
        sock.close()
        raise
    return sock


def accept_clients(listener: socket.socket, retry_s: float = _RETRY_S) -> Iterator[socket.socket]:
    """Yield a socket for each client that connects, until `listener` is closed.

    Disconnect clients that run as other users. If accepting fails, for example because this process
    has too many open files, log the first of these errors and retry every `retry_s` seconds.
    """
    has_failed = False
    while True:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _CLOSED:
                return
            if not has_failed:
                write_log("W", f"a connection cannot be accepted: {error}; retrying")
            has_failed = True
            time.sleep(retry_s)
            continue
        has_failed = False
        if is_same_user(sock):
            yield sock
        else:
            sock.close()


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the peer of a Unix socket runs as the same user as this process."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())
