"""Tests of state files and their validity."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.waiting import wait_until
from trtllm_serve_cli.launch.server_state import (
    ServerState,
    describe_supervisor,
    is_same_process,
    read_state,
    read_stop_timeout_s,
    reset_state_files,
    started_at_s,
    write_state,
    write_stop_timeout,
)

MINE = describe_supervisor("ready")


@given(st.from_type(ServerState))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_state_is_read_as_it_was_written(tmp_path: Path, state: ServerState) -> None:
    write_state(tmp_path, state)
    assert repr(read_state(tmp_path)) == repr(state)  # NaN is not equal to itself


def test_write_state_leaves_no_temporary_file(tmp_path: Path) -> None:
    for phase in ("starting", "ready"):
        write_state(tmp_path, dataclasses.replace(MINE, phase=phase))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert read_state(tmp_path) == MINE


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every write of a new file fail with ENOSPC."""

    def fail(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)


@pytest.mark.usefixtures("full_disk")
def test_shorter_state_replaces_a_longer_one_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("a state longer than the preallocated size\n" * 200)
    write_state(tmp_path, MINE)
    assert read_state(tmp_path) == MINE
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_stop_timeout_file_is_preallocated(tmp_path: Path) -> None:
    reset_state_files(tmp_path)
    assert read_stop_timeout_s(tmp_path, 30) == 30
    (file,) = tmp_path.iterdir()
    size = file.stat().st_size
    for timeout_s in (86400.0, 0.0):
        write_stop_timeout(tmp_path, timeout_s)
        assert (read_stop_timeout_s(tmp_path, 30), file.stat().st_size) == (timeout_s, size)
    reset_state_files(tmp_path)
    assert read_stop_timeout_s(tmp_path, 30) == 30


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"why": []}', '{"why": [], "x": 1}'])
def test_invalid_state_file_reads_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert read_state(tmp_path) is None


def test_missing_state_file_reads_as_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


def test_state_of_a_running_process_is_supervised() -> None:
    assert MINE.is_supervised


def test_reused_process_id_is_not_supervised() -> None:
    later = dataclasses.replace(MINE, supervisor_started_at=MINE.supervisor_started_at - 100)
    assert (later.is_from_this_boot, later.is_supervised) == (True, False)


def test_state_from_an_earlier_boot_is_not_supervised() -> None:
    """Another process may have the same id and the same start time since this boot."""
    rebooted = dataclasses.replace(MINE, boot_id="another")
    assert (rebooted.is_from_this_boot, rebooted.is_supervised) == (False, False)


def test_state_of_another_machine_is_elsewhere() -> None:
    other = dataclasses.replace(MINE, boot_id="another", host="node-a")
    assert (other.is_elsewhere, other.is_supervised) == (True, False)
    assert not dataclasses.replace(other, phase="stopped").is_elsewhere
    assert not dataclasses.replace(other, host=MINE.host).is_elsewhere
    assert not dataclasses.replace(MINE, host="a former host name").is_elsewhere


def test_process_id_of_another_container_is_not_supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(tmp_path, MINE)
    monkeypatch.setattr("trtllm_serve_cli.launch.server_state.read_pid_namespace", lambda: "other")
    state = read_state(tmp_path)
    assert state is not None
    assert (state.is_supervised, state.is_elsewhere) == (False, False)


def test_locked_state_of_another_container_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = "from trtllm_serve_cli.launch.server_state import *; hold_supervisor_lock(Path({!r}))"
    command = (sys.executable, "-c", f"{hold.format(str(tmp_path))}; print(flush=True); input()")
    write_state(tmp_path, MINE)
    monkeypatch.setattr("trtllm_serve_cli.launch.server_state.read_pid_namespace", lambda: "other")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        state = read_state(tmp_path)
        assert state is not None
        assert (state.is_supervised, state.is_elsewhere) == (False, True)
    ended = read_state(tmp_path)
    assert ended is not None and not ended.is_elsewhere


def test_terminated_process_is_not_the_same_process() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        started_at = started_at_s(process.pid)
        assert is_same_process(process.pid, started_at)
    assert not is_same_process(process.pid, started_at)


def test_zombie_process_counts_as_terminated() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        started_at = started_at_s(process.pid)
        process.kill()
        wait_until(lambda: not is_same_process(process.pid, started_at))
