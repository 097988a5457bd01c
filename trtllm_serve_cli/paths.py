"""Where everything that `tllm` keeps lies: one folder, TLLM_HOME.

    checkpoints/<source>/   what was fetched, less what the hub's own cache holds
    engines/<name>-<mark>/  what was built, by its plan's fingerprint (ENGINE_DEST_PATH moves this)
    models/<name>/          model repositories, ready for Triton, each with its tllm.json
    servers/<http port>/    state, log and restricted-API token of a server
    servers/slurm-<name>-N/ script, logs and address of a Slurm job that is one
    locks/                  one lock file per model name

Nothing under a final name is ever half-made: it is written to a sibling and renamed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

from trtllm_serve_cli.errors import BadInput

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Home:
    """The folders under one TLLM_HOME; none needs to exist yet."""

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


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    """The folders named by TLLM_HOME and ENGINE_DEST_PATH, else the platform's user data folder.

    Links in them are followed: one folder must not have two names, or what is used under one could
    be deleted under the other.
    """
    if named := environ.get("TLLM_HOME"):
        root = Path(named).expanduser().resolve()
    else:
        import platformdirs

        root = Path(platformdirs.user_data_dir("tllm", appauthor=False)).resolve()
    engines = Path(environ.get("ENGINE_DEST_PATH") or root / "engines")
    return Home(root, engines.expanduser().resolve())


def check_model_name(name: str) -> str:
    """`name`, if it can name a folder and a Triton model; raises `BadInput` otherwise."""
    if not _MODEL_NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be a model's name.",
            why="a name is a folder and a Triton model: letters, digits, '.', '_' and '-', "
            "starting with a letter or digit, at most 128 characters",
            next_step="name the model with -m NAME and say where it comes from with -s SOURCE",
        )
    return name


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file for a while; `on_wait` is called when that takes waiting for another."""
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
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
    """Hold the lock file for a while if nobody else does; gives whether it is held."""
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
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
    """The bytes of all files in the folder; what goes away meanwhile counts nothing."""
    num_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.lstat()
            num_bytes += 0 if S_ISDIR(stat.st_mode) else stat.st_size
    return num_bytes


@contextmanager
def write_aside(final: Path) -> Iterator[Path]:
    """A new folder beside `final` that takes its place when the block ends without an error.

    A folder already at `final` is replaced. The folder is removed when the block fails; a killed
    process leaves only a hidden sibling, which the next call for the same name removes. Callers
    hold the model's lock.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for leftover in final.parent.glob(f".{glob.escape(final.name)}.aside-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    aside = _make_aside(final)
    try:
        aside.chmod(0o755)
        yield aside
        put_in_place(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(final: Path, text: str) -> None:
    """The file `final`, whole or not at all, in place of one that is there; so is its folder."""
    aside = final.with_name(f".{final.name}.aside")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(final)
    finally:
        aside.unlink(missing_ok=True)


def put_in_place(new: Path, final: Path) -> None:
    """Give the folder `new` the name `final`, on the same disk; a folder there is replaced."""
    if final.exists():
        _replace(final, new)
    else:
        new.rename(final)


def remove_folder(path: Path) -> None:
    """Delete the folder: it is gone from under its name at once, or not at all."""
    aside = _make_aside(path)
    try:
        path.rename(aside / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_aside(final: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{final.name}.aside-", dir=final.parent))


def _replace(final: Path, new: Path) -> None:
    retired = _make_aside(final)
    final.rename(retired / final.name)
    try:
        new.rename(final)
    except OSError:
        (retired / final.name).rename(final)
        raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)
