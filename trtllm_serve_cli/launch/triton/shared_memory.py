"""Name and remove the shared memory regions of a server's Python models."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FOLDER = Path("/dev/shm")
# Number of hexadecimal digits that identify a server start in the names of regions.
_NUM_DIGITS = 8


def region_prefix(http_port: int, token: str) -> str:
    """Return the name prefix for the shared memory regions of a server's Python models.

    Each start has a different token and therefore a different prefix. The cleanup after an earlier
    server on the same port then does not remove the new server's regions.
    """
    start = hashlib.sha256(token.encode()).hexdigest()[:_NUM_DIGITS]
    return f"tllm-{http_port}-{start}-"


def remove_regions(prefix: str) -> None:
    """Remove shared memory regions that a killed server has left behind.

    The region names start with `prefix`.
    """
    for path in _FOLDER.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
