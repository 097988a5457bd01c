"""Is there room on the disk for what is about to be written?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trtllm_serve_cli.errors import SourceError


def find_free_bytes(folder: Path) -> int:
    """Free space where `folder` is or would be made."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(there).free


def check_space(
    folder: Path, num_bytes: int, *, free: Callable[[Path], int] = find_free_bytes
) -> None:
    """Raises `SourceError` unless `num_bytes` fit where `folder` is or would be made."""
    if num_bytes > (there := free(folder)):
        raise SourceError(
            f"The disk of {folder} is too full for {show_size(num_bytes)}.",
            why=f"{show_size(there)} are free",
            next_step="make room, or keep models elsewhere: set HF_HOME (the hub's cache) or "
            "TLLM_HOME (the rest) to a folder on a larger disk",
        )


def show_size(num_bytes: int) -> str:
    """`num_bytes` for people, in decimal units as the hub shows them."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**power:
            return f"{num_bytes / 10**power:.1f} {unit}"
    return f"{num_bytes} bytes"
