"""Limit the size of a log that another process has open."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def rotate_log(log: Path, max_bytes: int) -> bool:
    """Copy a log longer than `max_bytes` to a file with the suffix `.log.1`, and truncate the log.

    Truncate the log even if it cannot be copied, for example because the disk is full. Return
    whether the log was truncated.
    """
    rotated = log.with_suffix(".log.1")
    # A missing log or a full disk must not stop the server.
    with contextlib.suppress(OSError):
        if log.stat().st_size > max_bytes:
            try:
                shutil.copyfile(log, rotated)
            except OSError:  # Remove the incomplete copy to free its disk space.
                with contextlib.suppress(OSError):
                    rotated.unlink()
            os.truncate(log, 0)
            return True
    return False
