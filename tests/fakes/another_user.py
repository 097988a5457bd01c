"""A process of another user, which connects to or listens on an abstract socket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="run the tests as root: only root can start processes of other users"
)
# Import before `setuid`, because the other user may not have access to the interpreter's files.
_START = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""
_CONNECT = """
sock.connect("\\0" + sys.argv[1])
"""
_LISTEN = """
sock.bind("\\0" + sys.argv[1])
sock.listen()
print("listening", flush=True)
sock, _ = sock.accept()
"""
_EXCHANGE = """
sock.settimeout(20)
try:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print(sock.recv(1000))
except OSError as error:
    print(type(error).__name__)
"""
# What `read` returns if the peer closes the connection, with or without reading first.
REFUSED = ("b''", "BrokenPipeError", "ConnectionResetError")


@contextmanager
def listening(name: str, sent: bytes) -> Iterator[subprocess.Popen[str]]:
    """Listen on the abstract socket `name`, and send bytes to the first client."""
    command = (sys.executable, "-c", _START + _LISTEN + _EXCHANGE, name, sent.hex())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert read(process) == "listening"
            yield process
        finally:
            process.kill()


def connect(name: str, sent: bytes) -> str:
    """Connect to the abstract socket `name`, send bytes, and return what was received."""
    command = (sys.executable, "-c", _START + _CONNECT + _EXCHANGE, name, sent.hex())
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout.strip()


def read(process: subprocess.Popen[str]) -> str:
    """Return the next line that the process prints: what it has received from its client."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
