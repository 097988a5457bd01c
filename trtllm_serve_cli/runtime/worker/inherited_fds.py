"""Close sockets in processes that an engine forks, and end these with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1


def close_in_children(*socks: socket.socket) -> None:
    """Close `socks` in processes that are forked from now on, and end those of this thread with it.

    A child that holds a socket of this process hides its death from the peer. A child that outlives
    it keeps its GPU.
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
        # The kernel sends the signal when the forking thread ends, and other threads may end early.
        if forking_thread == caller:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != caller[0]:  # the parent has ended already
                os.kill(os.getpid(), signal.SIGKILL)

    for sock in socks:
        sock.set_inheritable(False)
    os.register_at_fork(before=before_fork, after_in_child=after_fork)
