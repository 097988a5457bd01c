"""Read the CPU and memory limits of this process's control groups (cgroups).

The limits of a cgroup and of all its parents apply. cgroup v2 has a single hierarchy. cgroup v1 has
one hierarchy per controller, for example `/sys/fs/cgroup/memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def read_cpu_limit(own: Path = _OWN, mount: Path = _MOUNT) -> float | None:
    """Return the process's CPU limit in cores, or None if no cgroup sets a limit.

    Ignore limits that cannot be read. CPU affinity is a separate limit (see
    `os.sched_getaffinity`).
    """
    limits = []
    for folder in _list_folders("cpu", own, mount):
        quota_and_period = _read_words(folder / "cpu.max") or (
            *_read_words(folder / "cpu.cfs_quota_us"),
            *_read_words(folder / "cpu.cfs_period_us"),
        )
        # The quota is "max" (cgroup v2) or -1 (cgroup v1) if the CPU time is unlimited.
        if len(quota_and_period) == 2 and all(map(str.isdecimal, quota_and_period)):
            quota_us, period_us = map(int, quota_and_period)
            limits.append(quota_us / max(1, period_us))
    return min(limits, default=None)


def read_memory_limit(own: Path = _OWN, mount: Path = _MOUNT) -> int | None:
    """Return the process's memory limit in bytes, or None if no cgroup sets a limit.

    Ignore limits that cannot be read. If the memory is unlimited, cgroup v1 reports a number larger
    than any machine's memory, and the result is this number.
    """
    limits = [
        int(word)
        for folder in _list_folders("memory", own, mount)
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in _read_words(folder / name)
        if word.isdecimal()
    ]
    return min(limits, default=None)


def _list_folders(controller: str, own: Path, mount: Path) -> Iterator[Path]:
    """Yield the cgroup folders that can limit `controller` for this process.

    In each hierarchy, start with the process's cgroup and end with the root. In a container, the
    paths in `own` may be host paths that do not exist under `mount`, but the root is the
    container's own cgroup, so its limits are found.
    """
    for line in _read_text(own).splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            root = mount
        elif controller in names.split(","):
            root = mount / controller
        else:
            continue
        folder = root / path.lstrip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _read_words(path: Path) -> tuple[str, ...]:
    return tuple(_read_text(path).split())


def _read_text(path: Path) -> str:
    """Return the file's content, or an empty string if the file is missing or not readable."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
