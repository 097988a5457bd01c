"""Run `tllm` on a terminal of 24 lines of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyte
import pytest

_TIMEOUT_S = 60.0
# Make the terminal the controlling one of the session, so that a typed Ctrl-C sends SIGINT.
_TLLM = """
import faulthandler, fcntl, signal, termios
faulthandler.register(signal.SIGUSR1)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from trtllm_serve_cli.cli.main import main
main()
"""


class Terminal:
    """The user's end of a terminal."""

    def __init__(self, end: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._end = end
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def expect(self, text: str) -> str:
        """Wait until `text` is shown, and return the output before it since the last call."""
        assert self._await(text, _TIMEOUT_S), f"{text!r} was not shown: {self._shown!r}"
        before, _, self._shown = self._shown.partition(text)
        return before

    def press(self, key: str, until: str) -> None:
        """Type `key` until `until` is shown.

        `input` loses a Ctrl-C that arrives between a key and the wait for the next one.
        """
        self.type(key)
        while not self._await(until, 2.0):
            self.type(key)
        self.expect(until)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal, as by dragging the window's corner."""
        _resize(self._end, columns, lines)

    def feed(self, stream: pyte.ByteStream) -> None:
        """Wait for output, and send the output since the last call to an emulator."""
        assert select.select([self._end], [], [], _TIMEOUT_S)[0], "nothing was shown"
        stream.feed(self._read())

    def wait(self) -> int:
        """Wait for the exit code, and keep further output for `expect`."""
        if not self._await_end(_TIMEOUT_S):
            self.process.send_signal(signal.SIGUSR1)
            self._await_end(2.0)
            pytest.fail(
                f"tllm did not end; its output and the stacks of its threads: {self._shown}"
            )
        return self.process.wait(_TIMEOUT_S)

    def _await(self, text: str, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while text not in self._shown:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._end], [], [], left_s)[0]:
                return False
            received = self._read()
            assert received, f"tllm ended before it showed {text!r}: {self._shown!r}"
            self._shown += received.decode()
        return True

    def _await_end(self, timeout_s: float) -> bool:
        """Keep output until the process has closed the terminal, or until the time limit."""
        deadline_s = time.monotonic() + timeout_s
        while select.select([self._end], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            if not (received := self._read()):
                return True
            self._shown += received.decode()
        return False

    def _read(self) -> bytes:
        try:
            return os.read(self._end, 65536)
        except OSError:  # the other end was closed
            return b""


def _resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def run_at_terminal(*arguments: str, kind: str = "dumb") -> Iterator[Terminal]:
    """Run `tllm` with these arguments on a terminal whose TERM is `kind`."""
    end, terminal = pty.openpty()
    _resize(terminal, 80, 24)
    process = subprocess.Popen(
        [sys.executable, "-c", _TLLM, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        | {"TERM": kind},
    )
    os.close(terminal)
    try:
        yield Terminal(end, process)
    finally:
        process.kill()
        process.wait()
        os.close(end)
