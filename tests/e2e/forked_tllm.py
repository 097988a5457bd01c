"""Run `tllm` in a fork of a process that has already imported its modules.

    python -m tests.e2e.forked_tllm --serve NAME   be the server, until stdin is closed
    python forked_tllm.py NAME [ARGUMENT...]       run `tllm ARGUMENT...` in a fork of the server

The end-to-end tests run hundreds of commands. A short command spends most of its CPU time on
imports. NAME is the address of the server's abstract Unix socket, without the leading NUL.

A command has its own process, arguments, environment, current folder and standard streams. The
examples and the tests that send signals to `tllm` run the installed program instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence


def run_forked(name: str, arguments: Sequence[str]) -> int:
    """Run `tllm` in a fork of the server, with this process's surroundings. Return its exit code.

    Like a shell, return 128 plus the number of the signal if a signal has ended the command.
    """
    request = {"arguments": arguments, "environ": dict(os.environ)}
    folder = os.open(".", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [b"."], [0, 1, 2, folder])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        code = int(connection.recv(16))
    return code if code >= 0 else 128 - code


def serve(name: str) -> None:
    """Print a line, then fork a process for each connection, until stdin is closed."""
    # Forks leave no zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        print("listening", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                _handle(connection)
            connection.close()


def _handle(connection: socket.socket) -> None:
    """Run the command of a connection in another fork, send its exit code, and end this process.

    If the client ends first, for example because a test's time is over, kill the command.
    """
    # A command must be able to wait for its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, (*streams, folder), _, _ = socket.recv_fds(connection, 1, 4)
    with connection.makefile("rb") as file:
        request = json.loads(file.read())
    if process := os.fork():
        poll = select.poll()
        poll.register(connection, 0)  # only reports that the client has ended
        poll.register(os.pidfd_open(process), select.POLLIN)
        if connection.fileno() in dict(poll.poll()):
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        os.dup2(streams[number], number)
        os.close(streams[number])
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    os.fchdir(folder)
    os.close(folder)
    _run(request["arguments"], request["environ"])


def _run(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    from trtllm_serve_cli.cli.__main__ import main

    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["tllm", *arguments]
    main()


def import_modules() -> None:
    """Import the modules that commands use, and keep their objects out of garbage collections."""
    import gc
    import importlib
    import pkgutil
    from pathlib import Path

    import trtllm_serve_cli

    for package in ("bench", "cli", "client", "importing", "launch", "metrics", "repository"):
        path = [str(Path(trtllm_serve_cli.__path__[0], package))]
        for module in pkgutil.walk_packages(path, f"trtllm_serve_cli.{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    assert num_threads == 1, "a process with threads cannot be forked safely"
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if sys.argv[1] != "--serve":
        sys.exit(run_forked(sys.argv[1], sys.argv[2:]))
    import_modules()
    serve(sys.argv[2])
