"""What processes that an engine forks must not take along, and must not outlive."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1


def close_in_children(*socks: socket.socket) -> None:
    """Let processes that this thread forks from now on have none of `socks`, and end with it.

    One that held a socket of this process would hide its death from the other side; one that lived
    on would keep its GPU.
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
        # The signal comes when the thread ends that has forked: others come and go.
        if forking_thread == caller:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != caller[0]:  # it had ended before
                os.kill(os.getpid(), signal.SIGKILL)

    for sock in socks:
        sock.set_inheritable(False)
    os.register_at_fork(before=before_fork, after_in_child=after_fork)
