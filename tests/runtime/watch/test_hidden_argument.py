"""Test that a secret disappears from the command line of a running process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtllm_serve_cli.runtime.watch import hidden_argument
from trtllm_serve_cli.runtime.watch.hidden_argument import (
    hide_in_command_line,
    hide_in_command_lines,
)

# Copies its arguments, and prints them when it receives a line.
ECHO = "import sys; words = list(sys.argv); print('ready', flush=True); input(); print(words)"


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_secret_is_hidden_and_the_process_continues() -> None:
    command = (sys.executable, "-c", ECHO, "--first=x:s3cret", "other", "--second=s3cret")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        line = Path(f"/proc/{process.pid}/cmdline")
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert b"s3cret" in line.read_bytes()
        hide_in_command_line(process.pid, "s3cret")
        assert line.read_bytes().split(b"\0")[3:6] == [
            b"--first=x:******",
            b"other",
            b"--second=******",
        ]
        assert b"s3cret" in process.communicate(b"\n", timeout=60)[0]


def test_ended_process_is_reported() -> None:
    with subprocess.Popen(("true",)) as process:
        process.wait()
    with pytest.raises(OSError):
        hide_in_command_line(process.pid, "s3cret")


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_process_that_still_shows_the_secret_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yama, or a container without its capability, can deny access to the memory."""
    command = (sys.executable, "-c", ECHO, "--first=s3cret")
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        subprocess.Popen(("true",)) as ended,
    ):
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        ended.wait()
        with monkeypatch.context() as patched:
            patched.setattr(hidden_argument, "hide_in_command_line", deny)
            visible = hide_in_command_lines((process.pid, ended.pid), "s3cret")
        assert visible == {process.pid: "Permission denied"}
        assert hide_in_command_lines((process.pid, ended.pid), "s3cret") == {}
        process.communicate(b"\n", timeout=60)


def deny(pid: int, secret: str) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
