"""Define the interface of checkpoint and engine sources.

`registry.py` lists the source kinds. `parse_source` parses a source's text, for example
`hf:ORG/NAME`, and `str(source)` returns the text.
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
    """The plan for fetching a source.

    `description` is the text that a dry run prints. `is_cached` is set if no large download is
    expected.
    """

    description: str
    destination: Path
    is_cached: bool


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request to fetch a source, with tllm's folders, the options, the hub and the callbacks."""

    home: Home
    options: FetchOptions
    hub: Hub | None = None
    notify: Callable[[str], None] = lambda text: None
    watch: Watch | None = None


class Source(ABC):
    """The origin of a checkpoint or an engine."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def parse(cls, rest: str) -> Source:
        """Parse the text after the colon, for example `ORG/NAME`.

        Raise `BadInput` if the text is not valid.
        """

    @abstractmethod
    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        """Return the plan for fetching the source. Planning does not use the network."""

    def absolute(self) -> Source:
        """Return this source with an absolute path, or unchanged if the source has no path."""
        return self

    def unpinned(self) -> Source:
        """Return this source without its revision, or unchanged if the source has no revision."""
        return self

    def at_revision(self: _Self, revision: str) -> _Self:
        """Return this source at a revision.

        Raise `BadInput` if the source has a different revision or does not support revisions.
        """
        raise BadInput(
            f"{self} does not support revisions.",
            why="--revision applies only to models on the Hugging Face Hub",
            next_step="omit --revision",
        )


class CheckpointSource(Source):
    """A source that provides a Hugging Face checkpoint or a GGUF file."""

    __slots__ = ()
    format: ClassVar[Literal["hf", "gguf"]]

    @abstractmethod
    def fetch(self, request: FetchRequest) -> Checkpoint:
        """Fetch the checkpoint.

        Raise `BadInput` if the source's path or address cannot be used. Raise `MissingPart` if pip
        is required but not installed. Raise `SourceError` if the checkpoint cannot be fetched or is
        rejected.
        """

    @abstractmethod
    def inspect(self, request: FetchRequest) -> Checkpoint | None:
        """Return the checkpoint that `fetch` would return, without large downloads.

        The weights may be missing. Return `None` if the checkpoint cannot be inspected before it is
        downloaded.
        """

    def find_small_file(self, name: str, hub: Hub | None = None) -> Path | None:
        """Fetch a small file and return its path, or `None` if the checkpoint lacks it.

        Only sources whose format is "hf" support this method.
        """
        raise AssertionError(f"{self} does not support find_small_file")

    def find_file_size(self, name: str, hub: Hub | None = None) -> int | None:
        """Return a file's size in bytes without fetching the file.

        Return `None` if the checkpoint lacks the file. Only sources whose format is "hf" support
        this method.
        """
        raise AssertionError(f"{self} does not support find_file_size")


def parse_path(rest: str, prefix: str, noun: str) -> Path:
    """Parse a path and expand `~`. Raise `BadInput` if the path is empty or not valid."""
    if not rest.strip() or "\0" in rest:
        raise BadInput(
            f"'{prefix}:' does not contain a {noun} path.",
            why="the text after the colon is not a valid path",
            next_step=f"pass the {noun} path with -s {prefix}:PATH",
        )
    try:
        return Path(rest).expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"'{prefix}:{rest}' cannot be expanded to an absolute path.",
            why=str(error),
            next_step="pass an absolute path instead of a path with ~",
        ) from error


def check_exists(path: Path, what: str, usage: str) -> None:
    """Raise `BadInput` if the path does not exist."""
    if not path.exists():
        raise BadInput(
            f"{path} does not exist.",
            why=f"{usage} requires {what}",
            next_step=f"list the existing files with `ls {shlex.quote(str(path.parent))}`, then "
            "correct the path",
        )


def plan_local(source: Source, path: Path) -> FetchPlan:
    """Return the plan for a source with a local path. The files are used in place, not copied."""
    return FetchPlan(f"{source}: use in place", path.absolute(), True)
