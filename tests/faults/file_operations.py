"""Record the file operations of a command, and make one of them fail.

An audit hook of Python receives each operation that creates, renames, removes, opens or lists a
file, even if a library performs the operation. Reads and writes are not audited. Files are
therefore opened with `_pyio`, the implementation of `io` in Python, which calls `os.read` and
`os.write`. An audit hook cannot be removed, so only a child process may call `watch`.
"""

from __future__ import annotations

import _pyio
import builtins
import errno
import fcntl
import inspect
import io
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import trtllm_serve_cli

PACKAGE = str(Path(trtllm_serve_cli.__file__).parent)
KILL, TRUNCATED = "SIGKILL", "truncated"
# By default, one of this number of lines fails in each scenario. Scenarios share many lines.
SHARE = 6
# Operations that change no file.
READS = READING, LISTING, READ = "open for reading", "list", "read"
_ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
# `Path.glob` ignores missing permissions.
_FAULTS = {READING: ("EIO", "EACCES"), LISTING: ("EIO",), READ: (TRUNCATED, "EIO")}
# Event -> index of the argument with the file descriptor of the folder to which the path is
# relative.
_FOLDER_ARGUMENTS = {"os.mkdir": 2, "os.remove": 1, "os.rmdir": 1}
_RENAMING = ("os.rename", "os.link")
_CREATING = ("os.mkdir", "os.symlink", "os.link")
_OTHERS = ("os.remove", "os.rmdir", "os.rename", "os.chmod", "os.truncate")
CLEANUPS = ("os.remove", "os.rmdir")


@dataclass(frozen=True)
class Operation:
    """A file operation. `caller` contains the package's lines that led to it, innermost last."""

    kind: str
    path: str
    caller: tuple[str, ...]

    @property
    def line(self) -> str:
        """The package's line that led to the operation, or "" if a library's thread did."""
        return self.caller[-1] if self.caller else ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path} ({self.line})"


# The kind and the caller of an operation, and how many operations of both came before it. The
# number of all operations differs if a command waits.
Place = tuple[str, tuple[str, ...], int]


class PlaceFinder:
    """Finds the place of each operation of a run."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def __call__(self, operation: Operation) -> Place:
        key = operation.kind, operation.caller
        self._counts[key] += 1
        return (*key, self._counts[key] - 1)


def faults_of(kind: str) -> tuple[str, ...]:
    """Return the faults of a kind of operation. A process is killed only while it changes files."""
    return _FAULTS.get(kind, (*_ERRORS, KILL))


def choose_faults(operations: Sequence[Operation], first: int) -> list[tuple[str, int]]:
    """Return faults with operation numbers, for one of `SHARE` pairs of a line and a kind.

    The pairs and the faults of a kind take turns, starting with number `first`. The process is
    killed in the last of the operations of a pair. Other faults are injected into the first.
    """
    sites: dict[tuple[str, str], list[int]] = {}
    for number, operation in enumerate(operations):
        sites.setdefault((operation.kind, operation.line), []).append(number)
    chosen = []
    num_sites: Counter[str] = Counter()
    start = first % min(SHARE, len(sites))
    for (kind, _), numbers in list(sites.items())[start::SHARE]:
        faults = faults_of(kind)
        fault = faults[(first + num_sites[kind]) % len(faults)]
        chosen.append((fault, numbers[-1 if fault == KILL else 0]))
        num_sites[kind] += 1
    return chosen


def find_faults(
    operations: Sequence[Operation], *, is_full: bool
) -> list[tuple[str, Operation, Place]]:
    """Return faults of the first operation of each line and kind, with the operation's place.

    By default, return one fault for one of `SHARE` of these operations.
    """
    chosen = []
    firsts = [
        (operation, place)
        for operation, place in zip(operations, map(PlaceFinder(), operations), strict=True)
        if place[2] == 0
    ]
    for number, (operation, place) in enumerate(firsts):
        faults = faults_of(operation.kind)
        if is_full:
            chosen += [(fault, operation, place) for fault in faults]
        elif number % SHARE == 0:
            chosen.append((faults[number // SHARE % len(faults)], operation, place))
    return chosen


def read_operations(record: Path) -> list[Operation]:
    """Return the operations in a file with a JSON object per line."""
    lines = map(json.loads, record.read_text().splitlines())
    return [Operation(**{**each, "caller": tuple(each["caller"])}) for each in lines]


class _Truncated(Exception):
    """Raised by `fail` to end a file after the first half of a read."""


def watch(roots: Iterable[Path], on_operation: Callable[[Operation, bytes, int], None]) -> None:
    """Call `on_operation` before each operation on a file under one of `roots`.

    For a write, the function also receives the data and the file descriptor. If it raises an
    exception, the operation fails.
    """
    prefixes = tuple(f"{root}/" for root in roots)

    def notice(kind: str, path: str, data: bytes = b"", fd: int = -1) -> None:
        if not path.startswith(prefixes):
            return
        stack = _find_stack()
        # `shutil.rmtree` reads folders; its removals fail separately.
        if not (kind in _FAULTS and any(map(_is_rmtree, stack))):
            on_operation(Operation(kind, path, _find_caller(stack)), data, fd)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (found := _find_operation(event, arguments)) is not None:
            notice(*found)

    read, write, send, plain_open = os.read, os.write, os.sendfile, io.open
    truncated: set[tuple[int, str]] = set()

    def watched_read(fd: int, num_bytes: int) -> bytes:
        file = fd, _path_of(fd)
        try:
            notice(READ, file[1])
        except _Truncated:
            truncated.add(file)
            data = read(fd, num_bytes)
            return data[: len(data) // 2]
        return b"" if file in truncated else read(fd, num_bytes)

    def watched_write(fd: int, data: Any) -> int:
        notice("write", _path_of(fd), bytes(data), fd)
        return write(fd, data)

    def watched_send(to: int, *arguments: Any) -> int:
        notice("write", _path_of(to))
        return send(to, *arguments)

    def open_watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        is_watched = set(mode) & set("wax+") or _absolute(file).startswith(prefixes)
        opener = _pyio.open if is_watched else plain_open
        return opener(file, mode, *arguments, **options)

    sys.addaudithook(audit)
    os.read, os.write, os.sendfile = watched_read, watched_write, watched_send
    io.open = builtins.open = open_watched


def fail(fault: str, operation: Operation, data: bytes, fd: int) -> None:
    """Raise the system's error, or kill this process if `fault` is `SIGKILL`.

    If the operation is a write, write the first half of `data` before.
    """
    if fault == TRUNCATED:
        raise _Truncated
    # The position of a file in append mode would change, so the rest could be written again.
    if data and (fault == KILL or not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND):
        os.pwrite(fd, data[: len(data) // 2], os.lseek(fd, 0, os.SEEK_CUR))
    if fault == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    code = _ERRORS[fault]
    raise OSError(code, os.strerror(code), operation.path)


def _find_operation(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """Return the kind and the path of an audited operation, or None if it must not fail."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int):
            return None
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        # Opening a missing file fails by itself.
        can_fail = is_writing or os.path.lexists(path)
        return ("open" if is_writing else READING, _absolute(path)) if can_fail else None
    if event in ("os.scandir", "os.listdir"):
        return LISTING, _absolute(arguments[0] or ".")
    if event in ("os.symlink", *_RENAMING):
        return event, _absolute(arguments[1])
    if event not in (*_CREATING, *_OTHERS):
        return None
    position = _FOLDER_ARGUMENTS.get(event)
    folder = arguments[position] if position is not None else -1
    path = _absolute(arguments[0], folder)
    # Otherwise, the operation fails by itself, for example `mkdir` of an existing folder.
    return (event, path) if os.path.lexists(path) != (event in _CREATING) else None


def _absolute(path: Any, folder: int = -1) -> str:
    if isinstance(path, int):
        return _path_of(path)
    # `pathlib` would take a tenth of the time of a run.
    base = _path_of(folder) if folder >= 0 else os.getcwd()  # noqa: PTH109
    return os.path.normpath(os.path.join(base, os.fsdecode(path)))  # noqa: PTH118


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


def _find_stack() -> list[FrameType]:
    """Return the frames of this thread, innermost first."""
    stack = []
    frame = inspect.currentframe()
    while frame:
        stack.append(frame)
        frame = frame.f_back
    return stack


def _is_rmtree(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename == shutil.__file__ and "rmtree" in code.co_name


def _find_caller(stack: Iterable[FrameType]) -> tuple[str, ...]:
    # `f_lineno` is slow, so read it for frames of the package only.
    lines = [
        f"{frame.f_code.co_filename.removeprefix(PACKAGE)[1:]}:{frame.f_lineno}"
        for frame in stack
        if frame.f_code.co_filename.startswith(PACKAGE)
    ]
    return tuple(reversed(lines))
