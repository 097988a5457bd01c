"""Which Python packages are here, and in which version; none is imported for that."""

from __future__ import annotations

import importlib.metadata
import importlib.util


def find_version(distribution: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {name: find_version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def has_package(name: str) -> bool:
    """Whether `name` can be imported; packages that it is in are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
