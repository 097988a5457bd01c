"""Where processes start: a command with its output in a log, and what its last lines say."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_EXIT_TIMEOUT_S = 10.0


def die_with_parent(number: int | None = None) -> None:
    """Called in a new process before its program: it is killed when its parent is gone.

    `number` is another signal to send than SIGKILL, which Windows does not even know. The parent is
    the thread that started it. Elsewhere than on Linux it does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number or signal.SIGKILL)


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> int:
    """Run `command` to its end, its output appended to `log`; returns its exit code.

    `on_line` sees each line as it comes. An interrupt ends the command before it goes on, and the
    command does not outlive this process. Raises `FileNotFoundError` when there is no such program.
    """
    with (
        log.open("a", encoding="utf-8", errors="replace") as file,
        subprocess.Popen(
            tuple(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ) if environ is not None else None,
            text=True,
            encoding="utf-8",
            errors="replace",
            preexec_fn=die_with_parent,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                on_line(line.rstrip("\n"))
        except BaseException:
            process.terminate()
            try:
                process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return process.returncode


def follow_lines(log: Path, poll_s: float = 0.2) -> Iterator[str]:
    """The lines that are added to `log` from now on, without end; starts anew when it is cut."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, os.SEEK_END)
        rest = ""
        while True:
            chunk = file.read()
            if not chunk:
                if log.exists() and log.stat().st_size < file.tell():
                    file.seek(0)
                time.sleep(poll_s)
                continue
            *lines, rest = (rest + chunk).split("\n")
            yield from lines


def last_lines(log: Path, count: int, *, since: int = 0) -> list[str]:
    """The last lines of `log` that say something, `since` bytes of it left out.

    None when there is no such file.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
