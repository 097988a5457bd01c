"""What a build is, as data: the engine that is wanted, and the commands that make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.fingerprint import facts_of_checkpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint
from trtllm_serve_cli.sources.disk_space import show_size

# A change of what a plan means, made in this code, makes engines of older plans be built again.
_PLAN_VERSION = 3


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What runs the steps of a build, and the GPU that the engine is for.

    `python` is the interpreter, which needs the engine kind's packages; `versions` are those of
    them that it has. `gpu` is None where there is none or its card is unknown; `gpu_name` is then
    what its driver calls it.
    """

    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    trtllm_version: str | None = None
    gpu: Gpu | None = None
    gpu_name: str | None = None
    num_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Which engine is wanted, of what, and where."""

    model_name: str
    checkpoint: Checkpoint
    engine_dir: Path
    kind: str
    options: EngineOptions = field(default_factory=EngineOptions)
    trust_remote_code: bool = False
    # What a simulated engine is to be like: a card by its name, or a file that says its timing.
    gpu: str | None = None
    timing: Path | None = None


@dataclass(frozen=True, slots=True)
class RequiredModule:
    """A Python module that a step imports; `what` and `next_step` tell a user who lacks it."""

    name: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The steps from a checkpoint to the engine at `engine_dir`; none where it is one already.

    `facts` are what the engine follows from, and `fingerprint` is theirs.
    """

    model_name: str
    kind: str
    weights: str
    checkpoint: Checkpoint
    engine_dir: Path
    steps: tuple[BuildStep, ...]
    fingerprint: str
    estimated_bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[RequiredModule, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`."""
        return {
            "model": self.model_name,
            "engine": self.kind,
            "weights": self.weights,
            "source": self.checkpoint.source,
            "checkpoint": str(self.checkpoint.path),
            "engine_dir": str(self.engine_dir),
            "fingerprint": self.fingerprint,
            "facts": dict(self.facts),
            "estimated_bytes": self.estimated_bytes,
            "steps": [
                {
                    "title": step.title,
                    "command": list(step.command_in(self.engine_dir)),
                    "inputs": list(step.inputs_in(self.engine_dir)),
                    "outputs": [str(path) for path in step.outputs_in(self.engine_dir)],
                    "estimated_bytes": step.estimated_bytes,
                }
                for step in self.steps
            ],
        }

    def describe(self) -> str:
        """The plan in a few lines, its commands ready to paste."""
        if not self.steps:
            arguments = self.facts.get("llm_arguments", {})
            return "\n".join(f"  {name}: {value}" for name, value in arguments.items())
        engine = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} engine"
        lines = [
            f"Build {engine} for {self.model_name} ({self.weights} weights) from "
            f"{self.checkpoint.source}",
            f"into {self.engine_dir} (about {show_size(self.estimated_bytes)}):",
        ]
        lines += [f"  {step.title}:\n    {step.show(self.engine_dir)}" for step in self.steps]
        return "\n".join(lines)


def facts_of_engine(checkpoint: Checkpoint, kind: str, weights: str) -> dict[str, Any]:
    """What every engine follows from, whatever its kind."""
    return {
        "plan": _PLAN_VERSION,
        "kind": kind,
        "weights": weights,
        **facts_of_checkpoint(checkpoint),
    }


def check_num_gpus(request: BuildRequest, tools: Toolchain) -> None:
    """Raise `BadInput` if this machine has GPUs, and fewer than the engine has ranks."""
    world_size = request.options.world_size
    if tools.num_gpus is not None and world_size > tools.num_gpus:
        raise BadInput(
            f"tp x pp is {world_size} GPUs, and this machine has {tools.num_gpus}.",
            why="each rank of the engine takes one",
            next_step="lower --tp or --pp; `tllm plan` says what fits",
        )
