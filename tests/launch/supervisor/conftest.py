"""Fixtures of servers and supervisors that run a fake Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.container_engines import write_engine
from trtllm_serve_cli.paths import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the folder in which the fake Triton records its runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return write_engine(tmp_path / "bin", "podman")
