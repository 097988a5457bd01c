"""Limit the size of a log that another process has open."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

# Fraction of the maximum log size to keep if a log cannot be copied.
_KEPT_FRACTION = 1 / 16


def rotate_log(log: Path, max_bytes: int) -> bool:
    """Rotate the log if it is larger than `max_bytes` and return whether it was truncated.

    Copy the log to a file with the suffix `.log.1`, then truncate the log. If the copy fails, for
    example because the disk is full, truncate the log anyway, but keep its last lines and the
    previous copy.
    """
    rotated = log.with_suffix(".log.1")
    # A missing log or a full disk must not stop the server.
    with contextlib.suppress(OSError):
        if log.stat().st_size > max_bytes:
            tail = b"" if _has_copied(log, rotated) else _read_tail(log, max_bytes)
            os.truncate(log, 0)
            with contextlib.suppress(OSError), log.open("ab") as file:
                file.write(tail)
            return True
    return False


def _has_copied(log: Path, rotated: Path) -> bool:
    """Replace `rotated` with a copy of the log. Return False if the log cannot be copied."""
    aside = rotated.with_name(f"{rotated.name}.part")
    try:
        shutil.copyfile(log, aside)
        aside.replace(rotated)
    except OSError:  # Remove the incomplete copy to free its disk space.
        with contextlib.suppress(OSError):
            aside.unlink()
        return False
    return True


def _read_tail(log: Path, max_bytes: int) -> bytes:
    """Return the complete lines in the last `max_bytes * _KEPT_FRACTION` bytes of the log."""
    with log.open("rb") as file:
        file.seek(-int(max_bytes * _KEPT_FRACTION), os.SEEK_END)
        tail = file.read()
    return tail[tail.find(b"\n") + 1 :]
