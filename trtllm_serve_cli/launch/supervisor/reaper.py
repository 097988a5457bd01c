"""Kill the processes of a server whose supervisor was killed.

In local mode, the kernel kills Triton when the supervisor ends, but Triton's Python stubs can
outlive Triton. Under load, stubs wait for Triton's responses in shared memory, and some of them
hold Python's GIL while they wait (observed with Triton 2.51). The engine workers of these stubs
then do not release their memory and GPUs.

The reaper is a small process that reads a pipe from the supervisor. When the pipe closes, the
reaper waits up to 5 seconds for the processes in the server's session to exit. It then kills the
remaining processes and removes the server's shared memory. The reaper process runs this file as a
script. The file uses only the standard library, because the reaper runs without site-packages to
save memory and time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Time limit, in seconds, for the server's processes to exit without a signal. Stubs check every
# second whether Triton is alive. If Triton has died, the stubs exit, and the engine workers free
# their GPUs.
_EXIT_TIMEOUT_S = 5.0
_POLL_S = 0.1
SHARED_MEMORY = Path("/dev/shm")


class Reaper:
    """The supervisor's connection to its reaper process.

    `shared_memory_prefix` is the name prefix of the server's shared memory regions.
    """

    def __init__(self, shared_memory_prefix: str) -> None:
        self._prefix = shared_memory_prefix
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, sid: int) -> None:
        """Make the reaper kill session `sid` if the supervisor is killed.

        `sid` replaces the session from an earlier call. Start the reaper if it is not running.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", __file__, self._prefix),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reaper has just been killed
            self._process.stdin.write(f"{sid}\n".encode())
            self._process.stdin.flush()

    def end(self) -> None:
        """Stop the reaper without killing the server's processes."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def list_session(sid: int) -> list[int]:
    """List the processes of session `sid` that have not ended.

    The main thread of a killed process can be a zombie while other threads still end. Until they
    have ended, the process keeps its ports and its memory.
    """
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            # The name in parentheses may contain spaces. See `man 5 proc_pid_stat`.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            state, session, threads = fields[0], int(fields[3]), int(fields[17])
            if session == sid and (state != "Z" or threads > 1):
                pids.append(int(stat.parent.name))
    return pids


def kill_session(sid: int) -> None:
    """Kill the processes of session `sid`, including processes that start during this call."""
    while pids := list_session(sid):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def main() -> None:
    """Wait until the supervisor ends, then end the session that was last passed to `guard`.

    Wait up to `_EXIT_TIMEOUT_S` for the session's processes to exit, and kill the remaining
    processes. Then remove the server's shared memory. Do nothing if `guard` was never called.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sid = None
    for line in sys.stdin:
        sid = int(line)
    if sid is None:
        return
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    while list_session(sid) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    kill_session(sid)
    for path in SHARED_MEMORY.glob(f"{sys.argv[1]}*"):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
