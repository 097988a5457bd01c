"""Determine which CUDA versions an NVIDIA driver supports.

`MIN_DRIVERS` contains the minimum Linux driver for each major CUDA version. The sources are
NVIDIA's CUDA Compatibility guide (minor version compatibility) and the CUDA 13 release notes.
Drivers also support older CUDA versions.
"""

from __future__ import annotations

from types import MappingProxyType

from packaging.version import InvalidVersion, Version

MIN_DRIVERS = MappingProxyType({11: "450.80.02", 12: "525.60.13", 13: "580.65.06"})


def newest_cuda(driver: str) -> int | None:
    """Return the newest major CUDA version that the driver supports.

    The result is at most the newest version in `MIN_DRIVERS`. Return None if the driver does not
    support any version in `MIN_DRIVERS`. Raise `ValueError` if `driver` is not a version.
    """
    try:
        version = Version(driver)
    except InvalidVersion as error:
        raise ValueError(f"{driver!r} is not a driver version") from error
    runs = [cuda for cuda, minimum in MIN_DRIVERS.items() if Version(minimum) <= version]
    return max(runs, default=None)
