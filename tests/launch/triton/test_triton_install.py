"""Search for Triton and libpython."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtllm_serve_cli.errors import MissingPart
from trtllm_serve_cli.launch.triton.triton_install import (
    TritonInstallation,
    find_embedded_root,
    find_libpython,
    find_triton,
)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Write a `tritonserver` alone in a folder."""
    path = tmp_path / "bin" / "tritonserver"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_path_is_preferred(binary: Path, tmp_path: Path) -> None:
    found = find_triton(
        {"PATH": f"{tmp_path}:{binary.parent}"}, system=binary, find_embedded_root=lambda: tmp_path
    )
    assert found == TritonInstallation(binary, "PATH")


def test_system_triton_is_preferred_over_the_wheel(binary: Path, tmp_path: Path) -> None:
    found = find_triton({"PATH": ""}, system=binary, find_embedded_root=lambda: tmp_path)
    assert found == TritonInstallation(binary, str(binary.parent.parent))


def test_embedded_triton_has_the_parts_of_its_python_backend(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = find_triton({"PATH": ""}, system=tmp_path / "none", find_embedded_root=lambda: tmp_path)
    assert found == TritonInstallation(
        tmp_path / "bin/tritonserver",
        "the nvidia-pytriton package",
        tmp_path / "backends/python",
        tmp_path / "python_backend_stubs" / version / "triton_python_backend_stub",
    )


def test_missing_triton_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingPart) as raised:
        find_triton({"PATH": ""}, system=tmp_path / "none", find_embedded_root=lambda: None)
    assert raised.value.what == "Triton Inference Server is not installed."
    assert raised.value.next_step == (
        "run `pip install 'trtllm-serve-cli[embedded]'` (requires Linux and Python 3.12 or earlier)"
    )


def test_program_without_execute_permission_is_ignored(binary: Path, tmp_path: Path) -> None:
    binary.chmod(0o644)
    found = find_triton(
        {"PATH": str(binary.parent)}, system=tmp_path / "none", find_embedded_root=lambda: tmp_path
    )
    assert found.origin == "the nvidia-pytriton package"


@pytest.mark.skipif(find_embedded_root() is None, reason="needs the extra: embedded")
def test_embedded_triton_of_this_environment_is_complete() -> None:
    found = find_triton({"PATH": ""}, system=Path("/none"))
    parts = (found.binary, found.backend_parts, found.stub)
    assert [part and part.exists() for part in parts] == [True, True, True]


def test_find_libpython_returns_its_folder() -> None:
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folder = find_libpython()
    assert folder in (None, "") or (Path(folder) / name).exists()
