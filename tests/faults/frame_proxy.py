"""Links between a client and an engine worker that inject one fault into one frame."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import dataclass

from trtllm_serve_cli.runtime.worker.abstract_socket import connect

# `late` delays the frame within all limits, and `overdue` beyond the worker's limit for pings.
# `swapped` sends the frame after the next one, and `torn` closes the connection inside the frame.
FAULTS = ("lost", "cut", "torn", "late", "overdue", "swapped", "doubled")
_LATE_S = 0.02


@dataclass(frozen=True)
class Fault:
    """A fault in one frame: number `at` among the frames of `kind`, counted from 0.

    `kind` is the value of `do` or `is` in the frame's message.
    """

    name: str
    kind: str
    at: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.kind} {self.at}"


class FaultyLink:
    """Forward frames between sockets in threads, and inject the fault once.

    `overdue_s` is the delay of the fault `overdue`, and `is_over` is set after the delay.
    """

    def __init__(self, fault: Fault, overdue_s: float) -> None:
        self._fault = fault
        self._overdue_s = overdue_s
        self._num_seen = 0
        self._is_closing = threading.Event()
        self.has_injected = threading.Event()
        self.is_over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def join(self, one: socket.socket, other: socket.socket) -> None:
        """Forward the frames between two sockets, and close them with the link."""
        self._sockets += (one, other)
        self._start(self._forward, one, other)
        self._start(self._forward, other, one)

    def close(self) -> None:
        self._is_closing.set()
        for sock in self._sockets:
            _end(sock)
        for thread in self._threads:
            thread.join(60)
        for sock in self._sockets:
            sock.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        held = b""
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while header := stream.read(4):
                frame = header + stream.read(int.from_bytes(header, "big"))
                if not self._is_target(frame):
                    sink.sendall(frame + held)
                    held = b""
                elif self._fault.name == "swapped":
                    held = frame
                else:
                    self._inject(frame, sink)
        _end(source)
        _end(sink)

    def _is_target(self, frame: bytes) -> bool:
        message = json.loads(frame[4:])
        if self.has_injected.is_set() or self._fault.kind not in (
            message.get("do"), message.get("is")
        ):  # fmt: skip
            return False
        self._num_seen += 1
        if self._num_seen <= self._fault.at:
            return False
        self.has_injected.set()
        return True

    def _inject(self, frame: bytes, sink: socket.socket) -> None:
        half = frame[: 4 + len(frame) // 2]
        match self._fault.name:
            case "cut":
                sink.sendall(half)
            case "torn":
                sink.sendall(half)
                _end(sink)
            case "late" | "overdue":
                self._is_closing.wait(_LATE_S if self._fault.name == "late" else self._overdue_s)
                self.is_over.set()
                sink.sendall(frame)
            case "doubled":
                sink.sendall(frame + frame)


class FrameProxy(FaultyLink):
    """Listen on `name`, and join each connection to the socket `target`."""

    def __init__(self, name: str, target: str, fault: Fault, overdue_s: float) -> None:
        super().__init__(fault, overdue_s)
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._sockets.append(self._listener)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._start(self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    target = connect(self._target, None)
                except OSError:  # nothing listens there at the moment
                    _end(client)
                else:
                    self.join(client, target)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
