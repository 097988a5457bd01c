"""Close sockets in processes that an engine forks, and kill these processes with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1


def close_in_children(*socks: socket.socket) -> None:
    """Close `socks` in processes that are forked from now on.

    Otherwise the peer would not detect that this process has ended while a child holds the socket.
    Children of the calling thread are also killed when the thread ends, because they would keep
    their GPUs.
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
        # Only for the calling thread: the kernel sends the signal when the thread that forked ends,
        # and other threads may end before the process.
        if forking_thread == caller:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != caller[0]:  # the parent has ended already
                os.kill(os.getpid(), signal.SIGKILL)

    for sock in socks:
        sock.set_inheritable(False)
    os.register_at_fork(before=before_fork, after_in_child=after_fork)
