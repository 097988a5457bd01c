"""What processes that an engine forks must not take along, and must not outlive."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1


def keep_from_children(*socks: socket.socket) -> None:
    """Let processes that this thread forks from now on have none of `socks`, and end with it.

    One that held a socket of this process would hide its death from the other side; one that lived
    on would keep its GPU.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.getpid(), threading.get_ident()
    forking = here

    def before() -> None:
        nonlocal forking
        forking = os.getpid(), threading.get_ident()

    def in_child() -> None:
        for sock in socks:
            sock.close()
        # The signal comes when the thread ends that has forked: others come and go.
        if forking == here:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != here[0]:  # it had ended before
                os.kill(os.getpid(), signal.SIGKILL)

    for sock in socks:
        sock.set_inheritable(False)
    os.register_at_fork(before=before, after_in_child=in_child)
