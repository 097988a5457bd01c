"""Engine workers that a `WorkerProcess` starts, and that run in threads behind a faulty link.

As a script, this file is the process that `WorkerProcess` starts: it passes its end of the socket
to the test, and ends with the worker. An interpreter that only does this starts in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.scripted_worker import ScriptedEngine
    from tests.faults.frame_proxy import FaultyLink


class OwnedWorkers:
    """Run each worker that is started with `command`, with these options of `Worker`.

    If `why_failed` is set, the first worker cannot load its engine for this reason.
    """

    def __init__(self, name: str, link: FaultyLink, why_failed: str = "", **options: Any) -> None:
        self.command = (sys.executable, "-I", "-S", __file__, name)
        self.engines: list[ScriptedEngine] = []
        self._link = link
        self._why_failed = why_failed
        self._options = options
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Close the link, so that the workers end, and wait for them."""
        self._link.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                control, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._run, args=(control,)))
                self._threads[-1].start()

    def _run(self, control: socket.socket) -> None:
        from tests.fakes.scripted_worker import ScriptedEngine
        from trtllm_serve_cli.runtime.worker.protocol import encode_frame
        from trtllm_serve_cli.runtime.worker.worker import Worker

        _, (fd,), _, _ = socket.recv_fds(control, 1, 1)
        ours, theirs = socket.socketpair()
        self._link.join(socket.socket(fileno=fd), theirs)
        why_failed, self._why_failed = self._why_failed, ""
        with control, ours:
            if why_failed:
                ours.sendall(encode_frame({"is": "failed", "why": why_failed, "number": 0}))
                return
            self.engines.append(ScriptedEngine())
            # An invalid message ends the worker's process.
            with contextlib.suppress(Exception):
                Worker(self.engines[-1], ours, **self._options).run()
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Pass the socket of `--fd` to the test, and wait until the worker has ended."""
    fd = int(sys.argv[sys.argv.index("--fd") + 1])
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(f"\0{sys.argv[1]}")
        socket.send_fds(control, [b"x"], [fd])
        os.close(fd)
        control.recv(1)


if __name__ == "__main__":
    main()
