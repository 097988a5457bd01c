"""A whole kind of source in one module: `toy:FOLDER` copies a checkpoint."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import Checkpoint, inspect_hf_directory
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, FetchRequest


@dataclass(frozen=True, slots=True)
class ToySource(CheckpointSource):
    folder: str
    format: ClassVar[Literal["hf"]] = "hf"

    def __str__(self) -> str:
        return f"toy:{self.folder}"

    @classmethod
    def parse(cls, rest: str) -> ToySource:
        return cls(rest)

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        return FetchPlan(f"{self}: copy it", home.checkpoints / "toy", False)

    def fetch(self, request: FetchRequest) -> Checkpoint:
        copy = request.home.checkpoints / "toy"
        shutil.copytree(self.folder, copy)
        return inspect_hf_directory(copy, source=str(self), options=request.options)

    def inspect(self, request: FetchRequest) -> Checkpoint:
        return inspect_hf_directory(Path(self.folder), source=str(self), options=request.options)
