"""Define `local:DIR` sources, which are folders that contain a Hugging Face checkpoint."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import (
    WEIGHTS_INDEX,
    Checkpoint,
    inspect_config,
    inspect_hf_directory,
    is_weights,
)
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.source import (
    CheckpointSource,
    FetchPlan,
    FetchRequest,
    check_exists,
    parse_path,
    plan_local,
)


@dataclass(frozen=True, slots=True)
class LocalSource(CheckpointSource):
    """A `local:DIR` source, which is a folder that contains a Hugging Face checkpoint."""

    path: Path
    format: ClassVar[Literal["hf"]] = "hf"

    def __str__(self) -> str:
        return f"local:{self.path}"

    @classmethod
    def parse(cls, rest: str) -> LocalSource:
        return cls(parse_path(rest, "local", "folder"))

    def absolute(self) -> LocalSource:
        return LocalSource(self.path.absolute())

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        plan = plan_local(self, self.path)
        if not needs_weights or not self.path.is_dir() or self._has_weights():
            return plan
        return replace(plan, description=f"{self}: use in place, after you have added the weights")

    def fetch(self, request: FetchRequest) -> Checkpoint:
        path = self._find_folder()
        try:
            checkpoint = inspect_hf_directory(
                path, source=str(LocalSource(path)), options=request.options
            )
            files = [entry for entry in path.iterdir() if entry.is_file()]
            return replace(checkpoint, modified_ns=max(file.stat().st_mtime_ns for file in files))
        except OSError as error:
            raise SourceError(
                f"{path} cannot be read.",
                why=str(error),
                next_step=f"check the permissions with `ls -l {shlex.quote(str(path))}`",
            ) from error

    def inspect(self, request: FetchRequest) -> Checkpoint:
        if self._has_weights() or not (self.path / "config.json").is_file():
            return self.fetch(request)
        path = self.path.absolute()
        return inspect_config(path, source=str(LocalSource(path)), options=request.options)

    def find_small_file(self, name: str, hub: Hub | None = None) -> Path | None:
        path = self._find_folder() / name
        return path if path.is_file() else None

    def find_file_size(self, name: str, hub: Hub | None = None) -> int | None:
        path = self.find_small_file(name)
        return path.stat().st_size if path else None

    def _has_weights(self) -> bool:
        names = [entry.name for entry in self.path.glob("*")]
        return WEIGHTS_INDEX in names or any(map(is_weights, names))

    def _find_folder(self) -> Path:
        path = self.path.absolute()
        check_exists(path, "a folder with config.json and weights", "local:DIR")
        if not path.is_dir():
            source = f"gguf:{path}" if path.suffix == ".gguf" else f"local:{path.parent}"
            raise BadInput(
                f"{path} is a file, but local: requires a folder.",
                why="a Hugging Face checkpoint is a folder with config.json and weights",
                next_step=f"pass `-s {shlex.quote(source)}` instead",
            )
        return path
