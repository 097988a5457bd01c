"""Manage the shared memory regions of a server's Python models."""

from __future__ import annotations

import contextlib
from pathlib import Path

_FOLDER = Path("/dev/shm")


def protect_regions(prefix: str) -> None:
    """Deny other users access to the prompts and responses in the regions.

    The Python backend creates the regions with the mode 0644, regardless of the umask.
    """
    for path in _FOLDER.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            path.chmod(0o600)


def remove_regions(prefix: str) -> None:
    """Remove the regions that a killed server may have left behind."""
    for path in _FOLDER.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
