"""Define `engine:DIR` sources, which are folders that contain a TensorRT engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.source import FetchPlan, Source, parse_path, plan_local


@dataclass(frozen=True, slots=True)
class EngineSource(Source):
    """An `engine:DIR` source, which is a folder that contains a TensorRT engine."""

    path: Path

    def __str__(self) -> str:
        return f"engine:{self.path}"

    @classmethod
    def parse(cls, rest: str) -> EngineSource:
        return cls(parse_path(rest, "engine", "folder"))

    def absolute(self) -> EngineSource:
        return EngineSource(self.path.absolute())

    def plan_fetch(self, home: Home, *, needs_weights: bool, hub: Hub | None) -> FetchPlan:
        return plan_local(self, self.path)
