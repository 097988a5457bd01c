"""Define `gguf:FILE` sources, which are GGUF files on disk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import Checkpoint, inspect_gguf
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
class GgufSource(CheckpointSource):
    """A `gguf:FILE` source, which is a GGUF file on disk."""

    path: Path
    format: ClassVar[Literal["gguf"]] = "gguf"

    def __str__(self) -> str:
        return f"gguf:{self.path}"

    @classmethod
    def parse(cls, rest: str) -> GgufSource:
        return cls(parse_path(rest, "gguf", "file"))

    def absolute(self) -> GgufSource:
        return GgufSource(self.path.absolute())

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        return plan_local(self, self.path)

    def fetch(self, request: FetchRequest) -> Checkpoint:
        path = self.path.absolute()
        check_exists(path, "a GGUF file", "gguf:FILE")
        if path.is_dir():
            files = sorted(path.glob("*.gguf"))
            source = f"gguf:{files[0]}" if files else f"local:{path}"
            raise BadInput(
                f"{path} is a folder, but gguf: requires a file.",
                why=f"the folder contains {len(files) or 'no'} GGUF "
                f"file{('' if len(files) == 1 else 's')}",
                next_step=f"pass `-s {shlex.quote(source)}` instead",
            )
        checkpoint = inspect_gguf(path, source=str(GgufSource(path)))
        return replace(checkpoint, modified_ns=path.stat().st_mtime_ns)

    def inspect(self, request: FetchRequest) -> Checkpoint:
        return self.fetch(request)
