"""Forked processes, observed from the test process."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys

# Forks a child that sleeps, and sends its process id.
_PROGRAM = """
import os, socket, sys, time
from trtllm_serve_cli.runtime.worker.inherited_fds import close_in_children
sock = socket.socket(fileno=int(sys.argv[1]))
close_in_children(sock)
if not (child := os.fork()):
    time.sleep(600)
sock.sendall(str(child).encode())
time.sleep(600)
"""


def test_child_does_not_hold_the_socket_and_ends_with_its_parent() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with theirs:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
    child = int(ours.recv(20))
    pidfd = os.pidfd_open(child)
    try:
        parent.kill()
        assert ours.recv(20) == b""
        parent.wait()
        assert select.select([pidfd], [], [], 60)[0]
    finally:
        ours.close()
        os.close(pidfd)
        if parent.poll() is None:
            parent.kill()
