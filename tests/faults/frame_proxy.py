"""A proxy between a client and an engine worker that injects one fault into one frame."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass

from trtllm_serve_cli.runtime.worker.abstract_socket import connect

# `swapped` sends the frame after the next one, and `torn` closes the connection inside the frame.
FAULTS = ("lost", "cut", "torn", "late", "swapped", "doubled")
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


class FrameProxy:
    """Listen on `name`, and forward each connection to the socket `target` in threads."""

    def __init__(self, name: str, target: str, fault: Fault) -> None:
        self._target = target
        self._fault = fault
        self._num_seen = 0
        self.has_injected = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._start(self._accept)

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            _end(sock)
        for thread in self._threads:
            thread.join(60)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                worker = connect(self._target, None)
                self._sockets.append(worker)
                self._start(self._forward, client, worker)
                self._start(self._forward, worker, client)

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
            case "late":
                time.sleep(_LATE_S)
                sink.sendall(frame)
            case "doubled":
                sink.sendall(frame + frame)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
