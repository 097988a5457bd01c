"""Handle closed standard streams, limited encodings, and pipes closed by their reader."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path


def replace_closed() -> None:
    """Replace closed standard streams with the null device.

    Python sets a stream to None if it is closed, for example by `<&-` in a shell.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null_device = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # stays open
            setattr(sys, name, null_device)


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
