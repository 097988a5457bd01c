"""Keys as they are pressed, and the terminal's changes of size."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Keyboard:
    """What comes from the terminal on stdin."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup

    def wait(self, timeout_s: float) -> str:
        """The keys pressed since the last call; waits for one, or for a change of size.

        "" when neither comes in time, or the size has changed.
        """
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, self._wakeup], [], [], timeout_s)
        if self._wakeup in ready:
            os.read(self._wakeup, 1024)
        return os.read(stdin, 1024).decode(errors="ignore") if stdin in ready else ""


@contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """The terminal on stdin, which neither echoes nor waits for whole lines until the end."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    wakeup, ring = os.pipe()
    os.set_blocking(ring, False)

    def on_resize(number: int, frame: FrameType | None) -> None:
        os.write(ring, b"\0")

    handler = signal.signal(signal.SIGWINCH, on_resize)
    try:
        tty.setcbreak(stdin)
        yield Keyboard(wakeup)
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        os.close(wakeup)
        os.close(ring)
