"""Find installed Python packages and their versions without importing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trtllm_serve_cli.processes import run_captured

# The timeout is long, because Python can take several seconds to start on a busy machine.
_TIMEOUT_S = 20


def find_version(distribution: str) -> str | None:
    """Return a package's version, or `None` if the package is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that are installed, keyed by package name."""
    found = {name: find_version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def has_package(name: str) -> bool:
    """Return whether Python can find the module `name`.

    Only the module's parent packages are imported.
    """
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def find_python_with(distribution: str) -> str | None:
    """Return the first Python interpreter that has the package installed, or `None`.

    Check the running interpreter first. In each folder on PATH, check `python3` or, if the folder
    does not contain it, `python`. Skip links to folders that were checked.
    """
    if find_version(distribution) is not None:
        return sys.executable
    return next((each for each in _pythons_on_path() if python_has(each, distribution)), None)


def python_has(python: str, distribution: str) -> bool:
    """Return whether the package is installed in the interpreter `python`.

    Return false if the interpreter cannot be started or does not exit within `_TIMEOUT_S`.
    """
    code = f"import importlib.metadata as m; m.version({distribution!r})"
    # With -E, Python ignores PYTHONPATH, which could contain packages from another environment.
    result = run_captured((python, "-E", "-c", code), _TIMEOUT_S)
    return result is not None and result.code == 0


def _pythons_on_path() -> Iterator[str]:
    folders: dict[str, str] = {}
    for folder in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        folders.setdefault(os.path.realpath(folder), folder)
    for folder in folders.values():
        for name in ("python3", "python"):
            path = Path(folder, name)
            if str(path) != sys.executable and os.access(path, os.X_OK):
                yield str(path)
                break
