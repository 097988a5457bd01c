"""The source of a model: what each kind of source has to provide.

`registry.py` lists the kinds. A source is written in one line, which `parse_source` reads and
`str(source)` returns.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import Checkpoint, FetchOptions
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.progress import Watch

_Self = TypeVar("_Self", bound="Source")


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What fetching a source would do; `is_cached` means that no large download is expected."""

    description: str
    destination: Path
    is_cached: bool


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Where a checkpoint is fetched to, what is allowed, and where progress is reported."""

    home: Home
    options: FetchOptions
    hub: Hub | None = None
    notify: Callable[[str], None] = lambda text: None
    watch: Watch | None = None


class Source(ABC):
    """The source of a model."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def parse(cls, rest: str) -> Source:
        """Parse what follows the colon. Raise `BadInput` if it is not valid."""

    @abstractmethod
    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        """Plan the fetch from the state of the disk only."""

    def absolute(self) -> Source:
        """Return the same source with an absolute path, if it has a path."""
        return self

    def unpinned(self) -> Source:
        """Return the source without a revision, if it has one."""
        return self

    def at_revision(self: _Self, revision: str) -> _Self:
        """Return the source at a revision. Raise `BadInput` if it has none or another one."""
        raise BadInput(
            f"{self} has no revisions.",
            why="--revision is for models of the hub",
            next_step="leave --revision out",
        )


class CheckpointSource(Source):
    """The source of a checkpoint, in the layout of Hugging Face or as a GGUF file."""

    __slots__ = ()
    format: ClassVar[Literal["hf", "gguf"]]

    @abstractmethod
    def fetch(self, request: FetchRequest) -> Checkpoint:
        """Fetch the checkpoint. Raise `SourceError` if it is missing or refused."""

    @abstractmethod
    def inspect(self, request: FetchRequest) -> Checkpoint | None:
        """Describe the checkpoint that `fetch` will return, before anything large is fetched.

        Return `None` if that cannot be known yet.
        """

    def find_small_file(self, name: str, hub: Hub | None = None) -> Path | None:
        """Return the local path of a small file of the format "hf", fetched if needed."""
        raise AssertionError(f"{self} has no files")


def parse_path(rest: str, prefix: str, noun: str) -> Path:
    """Parse a path, in which `~` is expanded. Raise `BadInput` if there is none."""
    if not rest.strip() or "\0" in rest:
        raise BadInput(
            f"'{prefix}:' names no {noun}.",
            why="the path after the colon is empty or cannot be a path",
            next_step=f"-s {prefix}:PATH",
        )
    try:
        return Path(rest).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"'{prefix}:{rest}' cannot be found.",
            why=str(error),
            next_step="write the path in full",
        ) from error


def check_exists(path: Path, what: str, usage: str) -> None:
    """Raise `BadInput` if the path does not exist."""
    if not path.exists():
        raise BadInput(
            f"{path} does not exist.",
            why=f"{usage} needs {what}",
            next_step=f"ls {shlex.quote(str(path.parent))}",
        )


def plan_local(source: Source, path: Path) -> FetchPlan:
    """Plan the use of a path of this machine."""
    return FetchPlan(f"{source}: use it where it is", path.absolute(), True)
