"""Install suites: each has a virtual environment in the folder `.conformance` of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.conformance.suites import Clone, Sdist, Suite

CHECKOUT = Path(__file__).parents[2]
FOLDER = CHECKOUT / ".conformance"


class NotInstalled(Exception):
    """The suite cannot be installed on this machine."""


def install(suite: Suite) -> tuple[Path, Path]:
    """Return the suite's environment and the folder in which it runs; create them if needed."""
    environment = FOLDER / suite.name
    tests = CHECKOUT if suite.tests is None else find_tests(suite.tests, environment)
    packages = (*suite.requirements, *suite.tools)
    stamp, content = environment / "requirements.txt", "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != content:
        run(sys.executable, "-m", "venv", "--clear", str(environment))
        run(str(environment / "bin" / "pip"), "install", "--quiet", *packages)
        stamp.write_text(content)
    return environment, tests


def find_tests(source: Sdist | Clone, environment: Path) -> Path:
    if isinstance(source, Sdist):
        return unpack(source, environment.with_name(f"{environment.name}-tests"))
    if not (root := os.environ.get(source.variable)):
        raise NotInstalled(f"set {source.variable} to a clone of {source.url}, {source}")
    if not (tests := Path(root, source.folder).absolute()).is_dir():
        raise NotInstalled(f"{source.variable}: {tests} does not exist")
    return tests


def unpack(source: Sdist, target: Path) -> Path:
    """Download the source distribution, and keep only the folders with the tests."""
    kept = target / source.requirement
    if not kept.exists():
        shutil.rmtree(target, ignore_errors=True)
        download = ("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest")
        run(sys.executable, "-m", "pip", *download, str(target), source.requirement)
        (archive,) = target.glob("*.tar.gz")
        folders = (f"{source.folder}/", f"{source.data}/")
        with tarfile.open(archive) as content:
            files = [each for each in content if drop_top(each.name).startswith(folders)]
            content.extractall(target, files, filter="data")
        archive.unlink()
        next(target.iterdir()).rename(kept)
    return kept / source.folder


def drop_top(path: str) -> str:
    return path.partition("/")[2]


def run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [each for each in result.stderr.splitlines() if "ERROR" in each]
        raise NotInstalled((errors or result.stderr.splitlines() or ["pip failed"])[-1])
