"""Remove the shared memory regions of a server's Python models."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path("/dev/shm")


def remove_regions(prefix: str) -> None:
    """Remove shared memory regions that a killed server has left behind.

    The region names start with `prefix`.
    """
    for path in _FOLDER.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
