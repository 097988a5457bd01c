"""Connect to abstract sockets, and check that a peer runs as the same user.

An abstract socket has no file and therefore no file permissions. Any user can connect to it, and
any user can bind a free name, for example the name of a worker that has just exited. Both sides of
a connection must therefore check the peer.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")


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


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the peer of a Unix socket runs as the same user as this process."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())
