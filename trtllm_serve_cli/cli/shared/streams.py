"""Handle output streams with limited encodings, and pipes closed by their reader."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path


def escape_unencodable() -> None:
    """Make stdout and stderr escape the characters that their encoding does not support.

    By default, such characters raise `UnicodeEncodeError` on stdout.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flush the buffered output. Raise `BrokenPipeError` if the reader has closed the pipe."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def discard_unwritten() -> None:
    """Discard the buffered output, which Python would otherwise write to the closed pipe."""
    with Path(os.devnull).open("wb") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # the stream has no file descriptor
                os.dup2(nowhere.fileno(), stream.fileno())
