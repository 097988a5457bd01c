"""Record the file operations of a command, and make one of them fail.

An audit hook of Python receives each operation that creates, renames or removes a file, or opens a
file for writing, even if a library performs the operation. Writes are not audited. Files are
therefore opened with `_pyio`, the implementation of `io` in Python, which calls `os.write`. An
audit hook cannot be removed, so only a child process may call `watch`.
"""

from __future__ import annotations

import _pyio
import builtins
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trtllm_serve_cli

PACKAGE = str(Path(trtllm_serve_cli.__file__).parent)
FAULTS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EACCES": errno.EACCES,
    "SIGKILL": 0,
}
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

    def __str__(self) -> str:
        return f"{self.kind} {self.path} ({self.caller[-1] if self.caller else '?'})"


def watch(root: Path, on_operation: Callable[[Operation, bytes, int], None]) -> None:
    """Call `on_operation` before each operation on a file under `root`.

    For a write, the function also receives the data and the file descriptor. If it raises an
    exception, the operation fails.
    """
    prefix = f"{root}/"

    def notice(kind: str, path: str, data: bytes = b"", fd: int = -1) -> None:
        if path.startswith(prefix):
            on_operation(Operation(kind, path.removeprefix(prefix), _find_caller()), data, fd)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if (path := _find_path(event, arguments)) is not None:
            notice(event, path)

    write, send, plain_open = os.write, os.sendfile, io.open

    def watched_write(fd: int, data: Any) -> int:
        notice("write", str(_path_of(fd)), bytes(data), fd)
        return write(fd, data)

    def watched_send(to: int, *arguments: Any) -> int:
        notice("write", str(_path_of(to)))
        return send(to, *arguments)

    def open_watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opener = _pyio.open if set(mode) & set("wax+") else plain_open
        return opener(file, mode, *arguments, **options)

    sys.addaudithook(audit)
    os.write, os.sendfile = watched_write, watched_send
    io.open = builtins.open = open_watched


def fail(fault: str, operation: Operation, data: bytes, fd: int) -> None:
    """Raise the system's error, or kill this process if `fault` is `SIGKILL`.

    If the operation is a write, write the first half of `data` before.
    """
    if data:
        os.pwrite(fd, data[: len(data) // 2], os.lseek(fd, 0, os.SEEK_CUR))
    if fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    code = FAULTS[fault]
    raise OSError(code, os.strerror(code), operation.path)


def _find_path(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the path that an audited operation changes, or None if it changes nothing."""
    if event == "open":
        path, _, flags = arguments
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return _absolute(path) if is_writing and not isinstance(path, int) else None
    if event in ("os.symlink", *_RENAMING):
        return _absolute(arguments[1])
    if event not in (*_CREATING, *_OTHERS):
        return None
    position = _FOLDER_ARGUMENTS.get(event)
    folder = arguments[position] if position is not None else -1
    path = _absolute(arguments[0], folder)
    # Otherwise, the operation fails by itself, for example `mkdir` of an existing folder.
    return path if os.path.lexists(path) != (event in _CREATING) else None


def _absolute(path: Any, folder: int = -1) -> str:
    if isinstance(path, int):
        return str(_path_of(path))
    return str((_path_of(folder) if folder >= 0 else Path.cwd()) / os.fsdecode(path))


def _path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


def _find_caller() -> tuple[str, ...]:
    lines = [
        f"{frame.f_code.co_filename.removeprefix(PACKAGE)[1:]}:{number}"
        for frame, number in traceback.walk_stack(None)
        if frame.f_code.co_filename.startswith(PACKAGE)
    ]
    return tuple(reversed(lines))
