"""Read single keys from the terminal and detect when the terminal is resized."""

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
    """A reader for key presses in the terminal on stdin."""

    def __init__(self, resize_read_end: int) -> None:
        self._resize_read_end = resize_read_end

    def wait(self, timeout_s: float) -> str:
        """Wait for a key press or a resize and return the keys pressed since the last call.

        Return an empty string after a timeout or a resize.
        """
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, self._resize_read_end], [], [], timeout_s)
        if self._resize_read_end in ready:
            os.read(self._resize_read_end, 1024)
        return os.read(stdin, 1024).decode(errors="ignore") if stdin in ready else ""


@contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """Yield the keyboard on stdin, with echo and line buffering disabled during the block."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    resize_read_end, resize_write_end = os.pipe()
    os.set_blocking(resize_write_end, False)

    def on_resize(number: int, frame: FrameType | None) -> None:
        os.write(resize_write_end, b"\0")

    handler = signal.signal(signal.SIGWINCH, on_resize)
    try:
        tty.setcbreak(stdin)
        yield Keyboard(resize_read_end)
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        os.close(resize_read_end)
        os.close(resize_write_end)
