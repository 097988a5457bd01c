"""Which CUDA an NVIDIA driver runs.

Source: the minimum drivers on Linux, by CUDA's major version, in NVIDIA's CUDA Compatibility guide
(minor version compatibility) and CUDA 13's release notes. A driver runs older CUDA as well.
"""

from __future__ import annotations

from types import MappingProxyType

from packaging.version import InvalidVersion, Version

MIN_DRIVERS = MappingProxyType({11: "450.80.02", 12: "525.60.13", 13: "580.65.06"})


def newest_cuda(driver: str) -> int | None:
    """The newest major version of CUDA that this driver runs; None before 11.

    A CUDA after the last one known here counts as that. Raises `ValueError` for no version.
    """
    try:
        version = Version(driver)
    except InvalidVersion as error:
        raise ValueError(f"{driver!r} is no version of a driver") from error
    runs = [cuda for cuda, minimum in MIN_DRIVERS.items() if Version(minimum) <= version]
    return max(runs, default=None)
