"""Remove the temporary files that killed servers leave behind on this machine."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from trtllm_serve_cli.runtime import scratch

# Matches the folder that each Triton process creates for the Python environments of its models.
# Triton creates the folder before it starts the model processes, and removes it only on a normal
# exit.
_ENVIRONMENTS = "python_env_*"
_SCRATCH = "scratch"
_TEMPORARY = Path("/tmp")
# Tolerance in seconds for comparing a folder's modification time with process start times.
_CLOCK_S = 1.0


def scratch_environ(directory: Path) -> dict[str, str]:
    """Return the environment variable with the path of a server's temporary folder."""
    return {scratch.VARIABLE: str(directory / _SCRATCH)}


def prepare_scratch(directory: Path) -> None:
    """Create an empty temporary folder for the server in `directory`."""
    remove_scratch(directory)
    # If the disk is full, the processes use the system's temporary folder.
    with contextlib.suppress(OSError):
        (directory / _SCRATCH).mkdir(0o700)


def remove_scratch(directory: Path) -> None:
    """Remove the temporary folder of the server in `directory`."""
    shutil.rmtree(directory / _SCRATCH, ignore_errors=True)


def remove_environments(folder: Path = _TEMPORARY) -> None:
    """Remove the empty environment folders that Triton processes of this user left behind.

    Keep folders that a running Triton process may have created. Also keep folders that contain an
    environment, because a Triton process in a container that shares `folder` may use them.
    """
    paths = [path for path in folder.glob(_ENVIRONMENTS) if not path.is_symlink()]
    if not paths:
        return
    starts = list(_list_starts())
    for path in paths:
        with contextlib.suppress(OSError):  # not empty, not ours, or already removed
            created_s = path.stat().st_mtime
            if not any(first_s <= created_s <= last_s for first_s, last_s in starts):
                path.rmdir()


def _list_starts() -> Iterator[tuple[float, float]]:
    """Yield the time span in which each running Triton process may have created its folder.

    The times are in seconds since the epoch. Skip Triton processes of other users.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "tritonserver" and process.uids().effective == os.geteuid():
                models = [each.create_time() for each in process.children()]
                last_s = min(models, default=math.inf)
                yield process.create_time() - _CLOCK_S, last_s + _CLOCK_S
