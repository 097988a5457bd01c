"""A scripted engine worker in a thread, which accepts clients."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

from tests.fakes.scripted_worker import ScriptedEngine
from trtllm_serve_cli.runtime.worker.worker import Worker


class WorkerThread:
    """A worker whose owner only starts and stops it; `clients` are its other connections."""

    def __init__(self, name: str, **options: Any) -> None:
        self.engine = ScriptedEngine()
        self.clients: list[ClientSocket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._accepting = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._host, self._theirs = socket.socketpair()
        options = {"ping_period_s": 3600.0, **options}
        worker = Worker(self.engine, self._theirs, listener=self, **options)
        self._threads = [
            threading.Thread(target=worker.run),
            threading.Thread(target=self._read_statistics),
        ]
        for thread in self._threads:
            thread.start()

    def accept(self) -> tuple[Any, Any]:
        """Wait for the next client; the worker calls this like `accept` of a socket."""
        with self._accepting:
            sock, address = self._listener.accept()
        with self._lock:
            if self._is_closed:
                sock.close()
                raise OSError(errno.EBADF, "the worker is closed")
            self.clients.append(ClientSocket(sock))
            return self.clients[-1], address

    def close(self) -> None:
        """End like a process, whose sockets the system closes."""
        with self._lock:
            self._is_closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._accepting:  # the system keeps the name of the socket until `accept` returns
            self._listener.close()
        self._host.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._host.close()
        self._theirs.close()
        for client in self.clients:
            # The worker is still reading; closing alone would not interrupt it.
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()

    def _read_statistics(self) -> None:
        """Read messages to the owner, which would otherwise block the worker."""
        while self._host.recv(65536):
            pass


class ClientSocket:
    """The worker's end of the socket to a client."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._num_reads = 0
        self._is_stuck = False
        self._may_fail = threading.Event()
        self.is_sending = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    @property
    def num_messages(self) -> int:
        """The number of messages that the worker has read, with two reads per message."""
        return (self._num_reads - 1) // 2

    @contextlib.contextmanager
    def stuck(self) -> Iterator[None]:
        """Make sending block until the context ends, and then fail."""
        self._is_stuck = True
        yield
        self._may_fail.set()

    def recv(self, size: int) -> bytes:
        self._num_reads += 1
        return self._sock.recv(size)

    def sendall(self, data: bytes) -> None:
        if self._is_stuck:
            self.is_sending.set()
            assert self._may_fail.wait(60)
            raise BlockingIOError("the client does not read")
        self._sock.sendall(data)
