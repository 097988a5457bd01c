"""Close sockets in an engine's child processes, and kill forked ones when the worker exits."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1


def close_in_children(*socks: socket.socket) -> None:
    """Close `socks` in all child processes that this process starts from now on.

    If a child process kept a socket open, the peer would not detect that this process has exited.
    Child processes that the calling thread creates with `os.fork` are also killed when the calling
    thread ends, because they would otherwise keep their GPUs occupied.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    caller = os.getpid(), threading.get_ident()
    forking_thread = caller

    def before_fork() -> None:
        nonlocal forking_thread
        forking_thread = os.getpid(), threading.get_ident()

    def after_fork() -> None:
        for sock in socks:
            sock.close()
        # Request the signal only in child processes that the calling thread forked: the kernel
        # sends the signal when the forking thread ends, and other threads may end while this
        # process is still running.
        if forking_thread == caller:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != caller[0]:  # the parent has already ended
                os.kill(os.getpid(), signal.SIGKILL)

    for sock in socks:
        sock.set_inheritable(False)
    os.register_at_fork(before=before_fork, after_in_child=after_fork)
