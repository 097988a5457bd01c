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
_LONGEST_ID = 64 * 1024
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

    def pass_on(self, request_id: str) -> bool:
        """Whether another instance ran the request, and has ended it."""
        return any(forward_stop(self._group, request_id, but=self.name))

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
                asking, _ = self._listener.accept()
            except OSError:  # closed
                return
            with contextlib.suppress(OSError), asking:
                asking.settimeout(self._timeout_s)
                if _is_ours(asking):
                    request_id = _read_all(asking).decode(errors="replace")
                    asking.sendall(_STOPPED if self._stop(request_id) else _NOT_HERE)


def forward_stop(group: str, request_id: str, but: str = "") -> list[bool]:
    """Whether each instance of `group` ran the request, and has ended it; empty if none listens."""
    # A line per socket, a listening one's and those that it accepted; the name comes last.
    words = {line.split()[-1] for line in _SOCKETS.read_text().splitlines()}
    names = {word[1:] for word in words if word.startswith(f"@{_prefix_of(group)}")}
    # Every one is asked: several requests may share an id.
    return [_ask(name, request_id) for name in names - {but}]


def stop_socket_name(model_name: str) -> str:
    """The group of this model's instances in this server."""
    return f"{name_server()} {model_name}"


def name_server() -> str:
    """A text that the processes of one Triton have in common, and those of no other have."""
    triton = os.getppid()
    # The 22nd field, after a name that may hold anything: when it started. Containers that share
    # a network may have processes of the same number.
    stat = Path(f"/proc/{triton}/stat").read_text().rpartition(")")[2].split()
    return f"{triton} {stat[19]}"


def _prefix_of(group: str) -> str:
    return f"tllm-stop-{hashlib.sha256(group.encode()).hexdigest()[:32]}-"


def _ask(name: str, request_id: str) -> bool:
    # An instance that has just gone runs nothing any more.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(_TIMEOUT_S)
        asked.connect(f"\0{name}")
        asked.sendall(request_id.encode())
        asked.shutdown(socket.SHUT_WR)
        return asked.recv(1) == _STOPPED
    return False


def _is_ours(asking: socket.socket) -> bool:
    """Whether a process of this user's asks: abstract sockets are open to everyone."""
    told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.getuid())


def _read_all(asking: socket.socket) -> bytes:
    told = b""
    while len(told) <= _LONGEST_ID and (piece := asking.recv(4096)):
        told += piece
    return told
