"""Remove the shared memory regions of a server's Python models."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path("/dev/shm")


def remove_regions(prefix: str) -> None:
    """Remove the regions whose names start with `prefix`.

    A killed server may have left these regions behind.
    """
    for path in _FOLDER.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
