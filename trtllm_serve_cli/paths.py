"""Locate and write tllm's files in the folder TLLM_HOME.

    checkpoints/<source>/   fetched checkpoints that are not in the Hugging Face cache
    checkpoints/hf--<name>/ records of the verified files in the Hugging Face cache
    engines/<name>-<hash>/  engines, named after the model and the hash of the build plan's facts
                            (in ENGINE_DEST_PATH if it is set)
    models/<name>/          model repositories for Triton, each with a tllm.json
    servers/<http port>/    state, log and restricted-API token of a server
    servers/slurm-<name>-N/ script, logs and address of a server that runs as a Slurm job
    locks/                  lock files, for example one per model name
    keys.json               hashed API keys of the OpenAI-compatible API

Checkpoints, engines, model repositories and keys are written atomically: tllm writes them under a
temporary name in the same folder and then renames them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

from trtllm_serve_cli.errors import BadInput

# Constants for Linux's `renameat2`, which Python's standard library does not provide.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The errors of a file system without hard links, of a file of another user, and of a file with too
# many links.
_CANNOT_LINK = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.EMLINK)
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of TLLM_HOME and tllm's other folders. The folders may not exist yet."""

    root: Path
    engines: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def servers(self) -> Path:
        return self.root / "servers"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def keys(self) -> Path:
        """The path of the file with the hashed API keys."""
        return self.root / "keys.json"


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return the paths of tllm's folders.

    TLLM_HOME defaults to the user data folder, and ENGINE_DEST_PATH defaults to the folder
    `engines` in TLLM_HOME. Symbolic links are resolved. Otherwise, tllm could delete files under
    one path while another process uses them under a different path. Raise `BadInput` if the home
    directory is unknown and a path requires it.
    """
    if named := environ.get("TLLM_HOME"):
        root = expand_user(Path(named)).resolve()
    else:
        root = _find_data_folder().resolve()
    engines = Path(environ.get("ENGINE_DEST_PATH") or root / "engines")
    return Home(root, expand_user(engines).resolve())


def _find_data_folder() -> Path:
    import platformdirs

    try:
        return Path(platformdirs.user_data_dir("tllm", appauthor=False))
    except RuntimeError as error:
        raise BadInput(
            "The folder for tllm's files is unknown.",
            why="TLLM_HOME is not set, and this user does not have a home directory",
            next_step="set TLLM_HOME to a folder that you can write to",
        ) from error


def expand_user(path: Path) -> Path:
    """Replace a leading `~` or `~USER` in the path with the user's home directory.

    Raise `BadInput` if the home directory is unknown, for example because no such user exists.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"The path {path} cannot be used.",
            why=f"the home directory for {path.parts[0]} cannot be determined",
            next_step="pass the full path, without ~",
        ) from error


def make_folder(path: Path) -> None:
    """Create the folder and its parents.

    Raise `BadInput` if folders cannot be created in this file system, for example in /proc.
    """
    with _creating(path):
        path.mkdir(parents=True, exist_ok=True)


def check_can_create(folder: Path) -> None:
    """Raise `BadInput` or `OSError` if the folder cannot be created or replaced.

    The check creates a temporary file in the folder's nearest existing parent.
    """
    parent = next(each for each in folder.resolve().parents if each.exists())
    with _creating(folder), tempfile.TemporaryFile(dir=parent):
        pass


def check_model_name(name: str) -> str:
    """Return `name` if it is a valid folder name and Triton model name, or raise `BadInput`."""
    if not _MODEL_NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid model name.",
            why="a model name can contain at most 128 letters, digits, dots, underscores and "
            "hyphens, and it must start with a letter or digit",
            next_step="pass a valid name with -m NAME, and the model source with -s SOURCE",
        )
    return name


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock on the file `path` until the block ends.

    If another process holds the lock, call `on_wait` and wait for the lock.
    """
    import filelock

    make_folder(path.parent)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock the file without waiting and yield whether the attempt succeeded."""
    import filelock

    make_folder(path.parent)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def find_size(folder: Path) -> int:
    """Return the total size of the files in the folder and its subfolders, in bytes.

    Ignore files that another process deletes during the call.
    """
    num_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.lstat()
            num_bytes += 0 if S_ISDIR(stat.st_mode) else stat.st_size
    return num_bytes


@contextmanager
def write_aside(final: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `final` when the block ends without an error.

    If `final` is a symbolic link, replace its target, which may be on another disk.

    If the block raises an exception, the new folder is removed. If the process is killed, a hidden
    folder remains next to `final`. The next call with the same `final` removes the hidden folder,
    so calls with the same `final` must not overlap.
    """
    final = final.resolve()
    make_folder(final.parent)
    for leftover in final.parent.glob(f".{glob.escape(final.name)}.aside-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    aside = _make_aside(final)
    try:
        aside.chmod(0o755)
        yield aside
        put_in_place(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def link_files(source: Path, target: Path) -> None:
    """Copy the folder `source` to the empty folder `target`, with hard links to its files.

    Copy the content of files that cannot be linked. Symbolic links stay as they are.
    """
    for path in sorted(source.iterdir()):
        copy = target / path.name
        if path.is_dir() and not path.is_symlink():
            copy.mkdir()
            link_files(path, copy)
            continue
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            shutil.copy2(path, copy, follow_symlinks=False)
    shutil.copystat(source, target)


def write_text(final: Path, text: str, *, mode: int | None = None) -> None:
    """Write or replace the file `final` atomically. The parent folder must exist.

    `mode` contains the permission bits before the umask is applied. By default, an existing file
    keeps its permissions, and a new file gets the default permissions. If the process is killed, a
    hidden file remains next to `final`, and the next call with the same `final` uses it. Calls with
    the same `final` may overlap, also in several processes: each waits until the other has ended.
    """
    aside = final.with_name(f".{final.name}.aside")
    with _lock_file(aside, 0o666 if mode is None else mode):
        try:
            aside.write_text(text, encoding="utf-8")
            if mode is None and final.is_file():
                shutil.copymode(final, aside)
            aside.replace(final)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextmanager
def _lock_file(path: Path, mode: int) -> Iterator[None]:
    """Create the file if it is missing, and hold a lock on it until the block ends.

    While this function waits for the lock, its holder may rename or remove the file. In this case,
    create and lock a new file.
    """
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                yield
                return
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    """Return whether `path` is the path of the open file `fd`."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(fd))
    return False


def put_in_place(new: Path, final: Path) -> None:
    """Rename the folder `new` to `final`, replacing `final` if it exists.

    Both folders must be on the same file system. If `final` exists and the file system can exchange
    two folders atomically, `final` is never missing, even if the process is killed.
    """
    if not final.exists():
        new.rename(final)
    elif _exchange(new, final):
        shutil.rmtree(new, ignore_errors=True)
    else:
        _replace(final, new)


def remove_folder(path: Path) -> None:
    """Delete the folder.

    Rename the folder first, so that no partially deleted folder has the original name.
    """
    aside = _make_aside(path)
    try:
        path.rename(aside / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_aside(final: Path) -> Path:
    with _creating(final):
        return Path(tempfile.mkdtemp(prefix=f".{final.name}.aside-", dir=final.parent))


@contextmanager
def _creating(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(
            f"The folder {folder} cannot be created.",
            why="a parent folder does not exist, or the file system does not allow new folders",
            next_step="choose another folder, or set TLLM_HOME to a writable folder",
        ) from error


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically.

    Return False if the C library or the file system, for example NFS, does not support
    exchanging folders.
    """
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    # Raise the audit event for `os.rename`, because calls through ctypes do not raise it.
    sys.audit("os.rename", str(first), str(second), -1, -1)
    if rename(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def _replace(final: Path, new: Path) -> None:
    retired = _make_aside(final)
    try:
        final.rename(retired / final.name)
        try:
            new.rename(final)
        except OSError:
            (retired / final.name).rename(final)
            raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)
