"""Check the free space on a disk before large writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trtllm_serve_cli.errors import SourceError


def find_free_bytes(folder: Path) -> int:
    """Return the free space, in bytes, on the disk that contains `folder`.

    `folder` does not have to exist.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(there).free


def check_space(
    folder: Path, num_bytes: int, *, free: Callable[[Path], int] = find_free_bytes
) -> None:
    """Raise `SourceError` if less than `num_bytes` is free on the disk that contains `folder`."""
    if num_bytes > (there := free(folder)):
        raise SourceError(
            f"The disk that contains {folder} does not have enough space for "
            f"{show_size(num_bytes)} of data.",
            why=f"only {show_size(there)} is free",
            next_step="delete files on this disk, or set HF_HOME (the Hugging Face cache), "
            "ENGINE_DEST_PATH (engines) or TLLM_HOME (all other data) to a folder on a larger "
            "disk",
        )


def show_size(num_bytes: int) -> str:
    """Format a size in decimal units (kB, MB, GB or TB), as on the Hugging Face website."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**power:
            return f"{num_bytes / 10**power:.1f} {unit}"
    return f"{num_bytes} bytes"
