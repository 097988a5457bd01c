"""Temporary folders are in the server's folder, if there is one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from trtllm_serve_cli.runtime.scratch import VARIABLE, make_temporary_folder


@pytest.mark.parametrize("exists", [True, False])
def test_temporary_folder_is_in_the_servers_folder(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    if exists:
        scratch.mkdir()
    monkeypatch.setenv(VARIABLE, str(scratch))
    with make_temporary_folder("adapters-") as folder:
        assert Path(folder).parent == (scratch if exists else Path(tempfile.gettempdir()))
