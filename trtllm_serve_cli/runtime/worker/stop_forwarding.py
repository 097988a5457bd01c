"""Forward each stop request to the model instance that is running the request.

Each instance of a model is a process, and Triton may send a request to any instance. A stop request
therefore often reaches the wrong instance or waits in Triton's queue. To receive stop requests
directly, each instance listens on an abstract socket, which needs no file. Other instances, and
other models on the server, find the sockets in `/proc/net/unix`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from .abstract_socket import accept_clients, connect

_SOCKETS = Path("/proc/net/unix")
# Timeout, in seconds, for the response of an instance. Instances usually respond much sooner,
# because they run on this machine and have a dedicated thread for stop requests.
_TIMEOUT_S = 5.0
_MAX_ID_BYTES = 64 * 1024
_STOPPED, _NOT_HERE = b"1", b"0"


class StopForwarder:
    """A thread that receives stop requests for an instance in `group` until `close` is called.

    The requests come from other instances in `group` and from other models on the server. For each
    stop request, the thread calls `stop(request_id)`, which returns whether this instance was
    running the request. `name` is the name of this instance's abstract socket. If a connection
    sends no data for `timeout_s` seconds, it is closed.
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
        """Send a stop request to all other instances.

        Return whether at least one of these instances was running the request.
        """
        return any(forward_stop(self._group, request_id, exclude=self.name))

    def close(self) -> None:
        """Close the socket and wait at most `_TIMEOUT_S` seconds for the thread to stop."""
        # Shut the socket down first, because `close` alone does not interrupt `accept`.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_TIMEOUT_S)

    def _serve(self) -> None:
        for connection in accept_clients(self._listener):
            with contextlib.suppress(OSError), connection:
                connection.settimeout(self._timeout_s)
                request_id = _read_all(connection).decode(errors="replace")
                connection.sendall(_STOPPED if self._stop(request_id) else _NOT_HERE)


def forward_stop(group: str, request_id: str, exclude: str = "") -> list[bool]:
    """Send a stop request to the instances in `group`, except the one with the socket `exclude`.

    Return one value per instance: true if the instance was running the request.
    """
    # The last field of a line is the socket's name. Collect the names in a set, because an accepted
    # socket has the same name as its listener.
    words = {line.split()[-1] for line in _SOCKETS.read_text().splitlines()}
    names = {word[1:] for word in words if word.startswith(f"@{_prefix_of(group)}")}
    # Send the stop request to all instances, because several requests may have the same id.
    return [_send_stop(name, request_id) for name in names - {exclude}]


def stop_socket_name(model_name: str) -> str:
    """Return a name for the group of the model's instances. The name is unique to this server."""
    return f"{identify_server()} {model_name}"


def caller_socket_name(model_name: str) -> str:
    """Return a name for the group of the instances of all models that call this model.

    These are the text models, whose requests to this model have other ids than their clients'
    requests.
    """
    # The name differs from all results of `stop_socket_name`, because a model's name is the name of
    # a folder and therefore contains no slash.
    return stop_socket_name(f"{model_name}/callers")


def identify_server(triton_pid: int | None = None) -> str:
    """Return an identifier for the Triton process `triton_pid`, by default the parent process.

    All models in one Triton process get the same identifier. Raise `OSError` if the Triton process
    does not exist.
    """
    triton = os.getppid() if triton_pid is None else triton_pid
    # The process id is not unique if containers share a network namespace, so add the process's
    # start time (field 22). Read the fields after the last parenthesis, because field 2 is a name
    # in parentheses that may contain any characters.
    stat = Path(f"/proc/{triton}/stat").read_text().rpartition(")")[2].split()
    return f"{_inner_pid(triton)} {stat[19]}"


def _inner_pid(pid: int) -> str:
    """Return the process id that the process `pid` has inside its container.

    Models in a container see only this id, but the gateway runs outside the container.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1]
    return str(pid)


def _prefix_of(group: str) -> str:
    return f"tllm-stop-{hashlib.sha256(group.encode()).hexdigest()[:32]}-"


def _send_stop(name: str, request_id: str) -> bool:
    # Ignore connection errors. Usually, the instance has just exited, so it is not running the
    # request. The instance may also hang, or another user may have bound the socket's name.
    with contextlib.suppress(OSError), connect(name, _TIMEOUT_S) as sock:
        sock.sendall(request_id.encode())
        sock.shutdown(socket.SHUT_WR)
        return sock.recv(1) == _STOPPED
    return False


def _read_all(connection: socket.socket) -> bytes:
    data = b""
    while len(data) <= _MAX_ID_BYTES and (chunk := connection.recv(4096)):
        data += chunk
    return data
