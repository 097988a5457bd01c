"""Run commands, write their output to a log, and read the last lines of logs."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

# Environment variables of processes that import NumPy, but do no linear algebra. Without them,
# OpenBLAS starts a thread per CPU core in each of these processes.
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1"}

_PR_SET_PDEATHSIG = 1
_EXIT_TIMEOUT_S = 10.0
# Interval, in seconds, at which `SystemExit` is raised again, in case Python has discarded it.
_RAISE_AGAIN_S = 0.2
_MAX_TAIL_BYTES = 16 * 1024
# Terminal escape sequences that move the cursor or set the text color.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1))


def raise_open_file_limit() -> int:
    """Raise the soft limit on open files to the hard limit and return the new soft limit.

    If the system rejects the new limit, return the unchanged soft limit. Return `sys.maxsize` if
    the number of open files is not limited.

    Every network connection uses a file descriptor. Many systems have a soft limit of 1024, because
    select() does not support higher file descriptors.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS has an infinite hard limit, but rejects an infinite soft limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def die_with_parent(number: int | None = None) -> None:
    """Make the kernel send the signal `number` to this process when the parent thread ends.

    Pass this function to `Popen` as `preexec_fn`. The default signal is SIGKILL. The parent thread
    is the thread that called `Popen`. On systems other than Linux, this function does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number or signal.SIGKILL)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM and SIGHUP within the block, so that cleanup runs.

    The exit code is 128 plus the signal number, as in a shell. Further signals do not interrupt the
    cleanup. If SIGHUP is already ignored, it remains ignored.
    """
    exits: list[SystemExit] = []
    has_left = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        if not exits:
            exits.append(SystemExit(128 + number))
        if not _is_being_handled(exits[0]):
            raise exits[0]

    def raise_again() -> None:
        # Python discards exceptions in finalizers and weak-reference callbacks. Such code runs, for
        # example, at the end of an import or when a response is closed.
        while not has_left.wait(_RAISE_AGAIN_S):
            if exits:
                signal.pthread_kill(main_thread, signal.SIGTERM)

    handled = [signal.SIGTERM]
    # If SIGHUP is already ignored, as under `nohup`, do not handle it. The process must outlive its
    # terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    main_thread = threading.get_ident()
    before = {number: signal.signal(number, leave) for number in handled}
    repeater = threading.Thread(target=raise_again, daemon=True)
    repeater.start()
    try:
        yield
        if exits:
            raise exits[0]
    finally:
        has_left.set()
        try:
            repeater.join()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_being_handled(error: BaseException) -> bool:
    """Return whether this thread is handling `error` in an `except` or `finally` block."""
    handled = sys.exc_info()[1]
    while handled is not None and handled is not error:
        handled = handled.__context__
    return handled is error


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and output of a program. `code` is None if the program timed out."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def failure(self) -> str:
        """The last line that a failed program wrote to stderr, or to stdout if stderr is empty.

        If the program timed out, the value is "it timed out". If a failed program printed nothing,
        the value contains the exit code. If the program succeeded, the value is "".
        """
        if self.code == 0:
            return ""
        lines = (self.err or self.out).strip().splitlines()
        how = "it timed out" if self.code is None else f"exit code {self.code}"
        return lines[-1].strip() if lines else how


def run_captured(command: Sequence[str], timeout_s: float) -> CommandResult | None:
    """Run a short command and return its result, or None if the program cannot be started."""
    try:
        ended = subprocess.run(
            tuple(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout_s,
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        return CommandResult(None)
    return CommandResult(ended.returncode, ended.stdout, ended.stderr)


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    stop: Callable[[], None] = lambda: None,
) -> int:
    """Run `command`, append its output to `log`, and return its exit code.

    `on_line` receives each line when it is written, including every state of a progress bar. The
    log contains only complete lines and, if the output ends with a progress bar, the bar's last
    state.

    The command runs in a separate process group, and no process in the group outlives the command.
    If an exception such as `KeyboardInterrupt` is raised while the command runs, call `stop`, then
    stop the process group. `stop` can stop processes outside the group, such as a container. On
    Linux, the command does not outlive this process.

    Raise `FileNotFoundError` if the program does not exist.
    """
    with (
        log.open("a", encoding="utf-8", errors="replace") as file,
        subprocess.Popen(
            tuple(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ) if environ is not None else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        ) as process,
    ):
        assert process.stdout is not None
        # Set newline="" to keep the carriage returns that separate progress bar states.
        lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace", newline="")
        # Children that outlive the command keep the pipe open, so `_copy_lines` would not return. A
        # separate thread therefore waits for the command to exit and kills the remaining children.
        waiter = threading.Thread(target=_wait_for_leader, args=(process,), daemon=True)
        waiter.start()
        try:
            _copy_lines(lines, file, on_line)
        except BaseException:
            try:
                stop()
            finally:
                _end_group(process)
            raise
        finally:
            waiter.join()
    return process.returncode


def run_streamed(
    command: Sequence[str],
    on_output: Callable[[bytes], None],
    *,
    terminal: os.terminal_size | None = None,
) -> tuple[int, str]:
    """Run `command` and pass each chunk of output to `on_output`.

    If `terminal` is set, the command writes to a pseudo-terminal of that size, which makes the
    command show progress bars. Return the exit code and the last 16 KiB of the output, without
    escape sequences. If this process is interrupted, stop the command and its children.
    """
    read_end, write_end = _open_terminal(terminal) if terminal is not None else os.pipe()
    try:
        process = subprocess.Popen(
            tuple(command),
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    written = b""
    try:
        while chunk := _read_some(read_end):
            on_output(chunk)
            written = (written + chunk)[-_MAX_TAIL_BYTES:]
        code = process.wait()
    except BaseException:
        _end_group(process)
        raise
    finally:
        os.close(read_end)
    return code, _ESCAPES.sub("", written.decode(errors="replace"))


def _open_terminal(size: os.terminal_size) -> tuple[int, int]:
    """Return the read end and the write end of a new pseudo-terminal."""
    import fcntl
    import pty
    import struct
    import termios

    read_end, write_end = pty.openpty()
    fcntl.ioctl(write_end, termios.TIOCSWINSZ, struct.pack("4H", size.lines, size.columns, 0, 0))
    return read_end, write_end


def _read_some(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # Linux reports EIO when the other end of the terminal is closed.
        return b""


def _copy_lines(lines: TextIO, file: TextIO, on_line: Callable[[str], None]) -> None:
    overwritten = ""
    for piece in lines:
        line = piece.rstrip("\r\n")
        if piece.endswith("\r"):
            overwritten = line or overwritten
        else:
            file.write(f"{line}\n")
            file.flush()
            overwritten = ""
        on_line(line)
    if overwritten:
        file.write(f"{overwritten}\n")


def _wait_for_leader(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    _signal_group(process, signal.SIGKILL)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGTERM)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
    finally:  # Kill the process group even if the user interrupts the wait.
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def follow_lines(log: Path, start: int, poll_s: float = 0.2) -> Iterator[str]:
    """Yield the lines of `log` from byte offset `start` and wait for new lines indefinitely.

    If the log is truncated, continue from the start of the file.
    """
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        rest = ""
        while True:
            chunk = file.read()
            if not chunk:
                if log.exists() and log.stat().st_size < file.tell():
                    file.seek(0)
                    rest = ""
                time.sleep(poll_s)
                continue
            *lines, rest = (rest + chunk).split("\n")
            yield from lines


def last_lines(
    log: Path, count: int, *, since: int = 0, until: int | None = None, max_bytes: int = 64 * 1024
) -> list[str]:
    """Return the last `count` lines of `log` that are not blank.

    Read only the bytes from offset `since` to offset `until` (by default, the end of the file), and
    at most the last `max_bytes` of them. Return an empty list if `log` cannot be read.
    """
    try:
        end = log.stat().st_size if until is None else until
        with log.open("rb") as file:
            file.seek(max(since, end - max_bytes))
            text = file.read(max(0, end - file.tell())).decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def end_of_lines(log: Path) -> int:
    """Return the byte offset of the end of the last complete line in `log`.

    Search only the last 16 KiB. If this part contains no newline, return the offset of its first
    byte. Return 0 if `log` cannot be read.
    """
    try:
        with log.open("rb") as file:
            start = max(0, file.seek(0, io.SEEK_END) - _MAX_TAIL_BYTES)
            file.seek(start)
            return start + file.read().rfind(b"\n") + 1
    except OSError:
        return 0
