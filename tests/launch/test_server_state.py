"""What a supervisor wrote down, and whether it is still true."""

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
    describe_myself,
    forget_states,
    is_same_process,
    read_state,
    started_at_s,
    stop_limit_s,
    write_state,
    write_stop_timeout,
)

MINE = describe_myself("ready")


@given(st.from_type(ServerState))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_state_is_read_as_it_was_written(tmp_path: Path, state: ServerState) -> None:
    write_state(tmp_path, state)
    assert repr(read_state(tmp_path)) == repr(state)  # for not-a-number equals nothing


def test_state_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    for phase in ("starting", "ready"):
        write_state(tmp_path, dataclasses.replace(MINE, phase=phase))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert read_state(tmp_path) == MINE


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which no new file has room."""

    def fail(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)


@pytest.mark.usefixtures("full_disk")
def test_short_state_after_a_long_one_is_read_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("a state that was too long for its room\n" * 200)
    write_state(tmp_path, MINE)
    assert read_state(tmp_path) == MINE
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_time_to_stop_has_its_room_before_anybody_says_it(tmp_path: Path) -> None:
    forget_states(tmp_path)
    assert stop_limit_s(tmp_path, 30) == 30
    (file,) = tmp_path.iterdir()
    room = file.stat().st_size
    for said in (86400.0, 0.0):
        write_stop_timeout(tmp_path, said)
        assert (stop_limit_s(tmp_path, 30), file.stat().st_size) == (said, room)
    forget_states(tmp_path)
    assert stop_limit_s(tmp_path, 30) == 30


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"why": []}', '{"why": [], "x": 1}'])
def test_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert read_state(tmp_path) is None


def test_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


def test_state_of_a_living_process_is_believed() -> None:
    assert MINE.is_supervised


def test_state_is_not_believed_when_the_process_id_belongs_to_another() -> None:
    later = dataclasses.replace(MINE, supervisor_started_at=MINE.supervisor_started_at - 100)
    assert (later.is_of_this_boot, later.is_supervised) == (True, False)


def test_state_of_a_former_boot_is_not_believed() -> None:
    """Its process may have a namesake that started as long after this boot."""
    rebooted = dataclasses.replace(MINE, boot_id="another")
    assert (rebooted.is_of_this_boot, rebooted.is_supervised) == (False, False)


def test_state_of_another_machine_says_nothing_of_this_one() -> None:
    theirs = dataclasses.replace(MINE, boot_id="another", host="node-a")
    assert (theirs.is_elsewhere, theirs.is_supervised) == (True, False)
    assert not dataclasses.replace(theirs, phase="stopped").is_elsewhere
    assert not dataclasses.replace(theirs, host=MINE.host).is_elsewhere
    assert not dataclasses.replace(MINE, host="the name that it had before").is_elsewhere


def test_state_is_not_believed_after_the_process_is_gone() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        started_at = started_at_s(process.pid)
        assert is_same_process(process.pid, started_at)
    assert not is_same_process(process.pid, started_at)


def test_process_that_nobody_waited_for_counts_as_gone() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        started_at = started_at_s(process.pid)
        process.kill()
        wait_until(lambda: not is_same_process(process.pid, started_at))
