"""The files in which processes count their heartbeats."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until
from trtllm_serve_cli.runtime.pulse import (
    PULSES_VARIABLE,
    STACKS_SIGNAL,
    Pulse,
    PulseFile,
    PulseState,
    PulseWriter,
    read_pulses,
)

BEATING = """
import sys, time
from trtllm_serve_cli.runtime.pulse import start_beating
start_beating("model", "a.b")
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PULSES_VARIABLE, str(tmp_path))
    return tmp_path


def read_only(folder: Path) -> Pulse:
    (pulse,) = read_pulses(folder)
    return pulse


def test_file_that_was_not_written_yet_is_loading(folder: Path) -> None:
    file = PulseFile("worker", "m")
    assert read_only(folder) == Pulse("worker", "m", 0, PulseState.LOADING)
    file.close()
    assert list(folder.iterdir()) == []


def test_reader_finds_what_was_written(folder: Path) -> None:
    file = PulseFile("worker", "m")
    writer = PulseWriter(file.path)
    writer.beat()
    writer.beat()
    writer.note_updates()
    writer.note_iteration(40)
    assert read_only(folder).num_updates == 0
    writer.work(3)
    pulse = read_only(folder)
    assert (pulse.state, pulse.num_beats, pulse.num_updates, pulse.iteration) == (
        PulseState.BUSY, 2, 1, 40,
    )  # fmt: skip
    assert pulse.num_in_flight == 3
    writer.fail()
    assert read_only(folder).state is PulseState.FAILED
    file.close()


def test_process_without_a_supervisor_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PULSES_VARIABLE, raising=False)
    file = PulseFile("model", "m")
    assert file.path is None
    PulseWriter(file.path).beat()
    file.close()


def test_missing_folder_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PULSES_VARIABLE, str(folder / "gone"))
    assert PulseFile("model", "m").path is None


def test_file_that_cannot_be_written_or_removed_is_not_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        assert PulseFile("worker", "m").path is None
    assert list(folder.iterdir()) == []
    file = PulseFile("worker", "m")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        file.close()
    assert list(read_pulses(folder)) == []


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 48])
def test_invalid_files_are_ignored(folder: Path, content: bytes) -> None:
    file = PulseFile("model", "m")
    assert file.path is not None
    file.path.write_bytes(content)
    assert list(read_pulses(folder)) == []
    file.close()


def test_process_counts_until_it_ends_and_writes_its_stacks(folder: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", BEATING), stderr=subprocess.PIPE) as process:
        wait_until(lambda: any(each.num_beats > 1 for each in read_pulses(folder)))
        pulse = read_only(folder)
        assert (pulse.role, pulse.model, pulse.pid) == ("model", "a.b", process.pid)
        process.send_signal(STACKS_SIGNAL)
        assert process.stderr is not None
        assert any(b"most recent call first" in line for line in process.stderr)
        process.kill()
    for _ in range(2):
        (ended,) = read_pulses(folder, reports_ended=True)
        assert ended == Pulse("model", "a.b", process.pid, PulseState.ENDED)
    assert list(read_pulses(folder)) == []
    assert list(folder.iterdir()) == []
