"""Forward stop requests to the instance of the model that runs the request.

Each instance of a model is a process, and Triton sends each request to any of them, so a stop often
reaches another instance than the request. If requests wait in Triton's queue, a stop would also
wait. The instances therefore listen on abstract sockets, which leave no files behind. The other
instances and the text models find them in the system's list of sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

_SOCKETS = Path("/proc/net/unix")
# The other instances are on this machine, and respond from a dedicated thread.
_TIMEOUT_S = 5.0
_MAX_ID_BYTES = 64 * 1024
_STOPPED, _NOT_HERE = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")


class StopForwarder:
    """An instance of `group` that sends stops to the others and receives theirs, until `close`.

    For each stop, its thread calls `stop(request_id)`, which returns whether the request ran here.
    `name` is its abstract socket. A connection that sends nothing is closed after `timeout_s`.
    """

    def __init__(
        self, group: str, stop: Callable[[str], bool], timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._group = group
        self._timeout_s = timeout_s
        self.name = f"{_prefix_of(group)}{uuid.uuid4().hex}"
        self._stop = stop
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def forward(self, request_id: str) -> bool:
        """Send a stop to all other instances, and return whether one was running the request."""
        return any(forward_stop(self._group, request_id, exclude=self.name))

    def close(self) -> None:
        """Stop listening."""
        # Closing alone would leave the thread in `accept`.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with contextlib.suppress(OSError), connection:
                connection.settimeout(self._timeout_s)
                if _is_same_user(connection):
                    request_id = _read_all(connection).decode(errors="replace")
                    connection.sendall(_STOPPED if self._stop(request_id) else _NOT_HERE)


def forward_stop(group: str, request_id: str, exclude: str = "") -> list[bool]:
    """Send a stop to each instance of `group`, and return which ones were running the request."""
    # Each line is a socket, listening or accepted; the name is the last field.
    words = {line.split()[-1] for line in _SOCKETS.read_text().splitlines()}
    names = {word[1:] for word in words if word.startswith(f"@{_prefix_of(group)}")}
    # All instances receive the stop, because several requests may share an id.
    return [_send_stop(name, request_id) for name in names - {exclude}]


def stop_socket_name(model_name: str) -> str:
    """Return the group of this model's instances in this server."""
    return f"{identify_server()} {model_name}"


def identify_server() -> str:
    """Return an identifier that is the same in all processes of one Triton, and unique to it."""
    triton = os.getppid()
    # Field 22 is the start time; field 2 is a name with any characters. The start time is required
    # because containers that share a network may have processes with the same id.
    stat = Path(f"/proc/{triton}/stat").read_text().rpartition(")")[2].split()
    return f"{triton} {stat[19]}"


def _prefix_of(group: str) -> str:
    return f"tllm-stop-{hashlib.sha256(group.encode()).hexdigest()[:32]}-"


def _send_stop(name: str, request_id: str) -> bool:
    # An instance that has just ended runs no requests.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(f"\0{name}")
        sock.sendall(request_id.encode())
        sock.shutdown(socket.SHUT_WR)
        return sock.recv(1) == _STOPPED
    return False


def _is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer runs as the same user: abstract sockets are open to all users."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())


def _read_all(connection: socket.socket) -> bytes:
    data = b""
    while len(data) <= _MAX_ID_BYTES and (chunk := connection.recv(4096)):
        data += chunk
    return data
