"""Folders of killed servers are removed, and folders of running servers are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from trtllm_serve_cli.launch.supervisor.leftovers import remove_environments


def make_folder(path: Path, created_s: float) -> Path:
    path.mkdir()
    os.utime(path, (created_s, created_s))
    return path


def hide_other_processes(process: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide servers of other tests, which may have started at the same time."""
    monkeypatch.setattr(psutil, "process_iter", lambda: [process])


def test_only_environments_of_killed_servers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tritonserver").symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen((tmp_path / "tritonserver", "600")) as triton:
        process = psutil.Process(triton.pid)
        hide_other_processes(process, monkeypatch)
        started_s = process.create_time()
        killed = make_folder(tmp_path / "python_env_killed", started_s - 60)
        in_use = make_folder(tmp_path / "python_env_in_use", started_s)
        filled = make_folder(tmp_path / "python_env_filled", started_s - 60)
        make_folder(filled / "0", started_s - 60)
        os.utime(filled, (started_s - 60, started_s - 60))
        remove_environments(tmp_path)
        assert [path.exists() for path in (killed, in_use, filled)] == [False, True, True]
        triton.kill()
    remove_environments(tmp_path)
    assert not in_use.exists()


def test_folders_that_are_newer_than_the_models_belong_to_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tritonserver").symlink_to(shutil.which("sh") or "")
    with subprocess.Popen((tmp_path / "tritonserver", "-c", "sleep 600 & wait")) as triton:
        process = psutil.Process(triton.pid)
        hide_other_processes(process, monkeypatch)
        while not (models := process.children()):
            time.sleep(0.02)
        other = make_folder(tmp_path / "python_env_other", models[0].create_time() + 60)
        remove_environments(tmp_path)
        assert not other.exists()
        models[0].kill()
