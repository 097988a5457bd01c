"""Protect the shared memory regions of a server's Python models."""

from __future__ import annotations

import contextlib
from pathlib import Path

_FOLDER = Path("/dev/shm")


def protect_regions(prefix: str) -> int:
    """Deny other users access to the regions whose names start with `prefix`.

    Return the number of matching regions. The regions contain prompts and responses, but the Python
    backend creates them with mode 0644, regardless of the umask.
    """
    paths = list(_FOLDER.glob(f"{prefix}*"))
    for path in paths:
        with contextlib.suppress(OSError):
            path.chmod(0o600)
    return len(paths)
