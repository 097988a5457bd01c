"""Carries a stop to the instance of the model that runs the request.

Triton gives each instance of a model a process of its own and each request to any of them, so that
a stop often reaches another instance than the request did; and where requests wait in Triton's
queue, a stop would wait behind them. The instances listen on abstract sockets, which leave no file
behind, and are found in the system's list of those: by each other, and by the text models.
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
# The other instances are on this machine, and answer from a thread that does nothing else.
_TIMEOUT_S = 5.0
_MAX_ID_BYTES = 64 * 1024
_STOPPED, _NOT_HERE = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")


class StopForwarder:
    """One instance's place among those that share `group`, until `close`.

    `stop(request_id)` is called from a thread of the relay's when somebody else asks; it returns
    whether the request was running here. `name` is that of its abstract socket; who connects and
    sends nothing is given up after `timeout_s`.
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
        """Whether another instance ran the request, and has ended it."""
        return any(forward_stop(self._group, request_id, exclude=self.name))

    def close(self) -> None:
        """Hear of no more stops."""
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
    """Whether each instance of `group` ran the request, and has ended it; empty if none listens."""
    # A line per socket, a listening one's and those that it accepted; the name comes last.
    words = {line.split()[-1] for line in _SOCKETS.read_text().splitlines()}
    names = {word[1:] for word in words if word.startswith(f"@{_prefix_of(group)}")}
    # Every one is asked: several requests may share an id.
    return [_send_stop(name, request_id) for name in names - {exclude}]


def stop_socket_name(model_name: str) -> str:
    """The group of this model's instances in this server."""
    return f"{identify_server()} {model_name}"


def identify_server() -> str:
    """A text that the processes of one Triton have in common, and those of no other have."""
    triton = os.getppid()
    # The 22nd field, after a name that may hold anything: when it started. Containers that share
    # a network may have processes of the same number.
    stat = Path(f"/proc/{triton}/stat").read_text().rpartition(")")[2].split()
    return f"{triton} {stat[19]}"


def _prefix_of(group: str) -> str:
    return f"tllm-stop-{hashlib.sha256(group.encode()).hexdigest()[:32]}-"


def _send_stop(name: str, request_id: str) -> bool:
    # An instance that has just gone runs nothing any more.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(f"\0{name}")
        sock.sendall(request_id.encode())
        sock.shutdown(socket.SHUT_WR)
        return sock.recv(1) == _STOPPED
    return False


def _is_same_user(connection: socket.socket) -> bool:
    """Whether a process of this user's asks: abstract sockets are open to everyone."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())


def _read_all(connection: socket.socket) -> bytes:
    data = b""
    while len(data) <= _MAX_ID_BYTES and (chunk := connection.recv(4096)):
        data += chunk
    return data
