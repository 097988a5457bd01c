from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trtllm_serve_cli.build.installed import (
    find_python_with,
    find_version,
    find_versions,
    has_package,
)


def test_versions_are_those_of_the_environment() -> None:
    assert find_version("pytest") == pytest.__version__
    assert find_version("nowhere") is None
    assert find_versions(("pytest", "nowhere")) == {"pytest": pytest.__version__}


@pytest.mark.parametrize(
    ("name", "is_there"), [("json", True), ("nowhere", False), ("nowhere.inside", False)]
)
def test_missing_package_or_parent_is_not_an_error(name: str, is_there: bool) -> None:
    assert has_package(name) is is_there


def test_current_python_is_preferred_to_those_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, code in (("without", 1), ("with", 0)):
        python = tmp_path / folder / "python3"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
    folders = [str(tmp_path / "without"), "", str(tmp_path / "nowhere"), str(tmp_path / "with")]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    assert find_python_with("pytest") == sys.executable
    assert find_python_with("nowhere") == str(tmp_path / "with" / "python3")
    monkeypatch.setenv("PATH", str(tmp_path / "without"))
    assert find_python_with("nowhere") is None


def test_python_of_a_folder_that_path_lists_twice_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/bin is a link to /usr/bin on Debian."""
    folder, link, runs = tmp_path / "usr-bin", tmp_path / "bin", tmp_path / "runs"
    folder.mkdir()
    link.symlink_to(folder)
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\necho run >> {runs}\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{link}:{folder}/")
    assert find_python_with("nowhere") is None
    assert runs.read_text() == "run\n"
