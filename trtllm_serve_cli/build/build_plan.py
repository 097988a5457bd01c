"""Define build requests and build plans."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.container import BuildContainer, ContainerTools
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.fingerprint import facts_of_checkpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint
from trtllm_serve_cli.sources.disk_space import show_size
from trtllm_serve_cli.sources.formats.sentence_transformers import read_embedding

# Part of every fingerprint. Increment this version when tllm builds a different engine from the
# same facts. Otherwise, tllm would reuse engines that older tllm versions built.
_PLAN_VERSION = 4


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs that run the build steps, and the target GPU.

    - `python`: the interpreter that runs the steps, except for TensorRT-LLM's programs.
    - `versions`: the versions of the installed packages that builds use, keyed by package name.
    - `trtllm_version`: the TensorRT-LLM version to build for, or `None` if no version is requested
      or installed.
    - `gpu`: the GPU type, or `None` if the machine has no GPU or the GPU is not in tllm's GPU
      table.
    - `gpu_name`: the GPU name in tllm's GPU table or, for other GPUs, the name from the driver.
      `None` if the machine has no GPU.
    - `num_gpus`: the number of GPUs that the engine can use, or `None` if tllm finds no GPU.
    - `container`: the container engine and the image, or `None` if the steps run on this machine.
    """

    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    trtllm_version: str | None = None
    gpu: Gpu | None = None
    gpu_name: str | None = None
    num_gpus: int | None = None
    container: ContainerTools | None = None


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A request to build an engine for a model from a checkpoint."""

    model_name: str
    checkpoint: Checkpoint
    engine_dir: Path
    kind: str
    options: EngineOptions = field(default_factory=EngineOptions)
    trust_remote_code: bool = False
    # Only simulated engines use these fields, and at most one of them may be set. `gpu` is the name
    # of the GPU to estimate timings for. `timing` is the timing file path.
    gpu: str | None = None
    timing: Path | None = None


@dataclass(frozen=True, slots=True)
class RequiredModule:
    """A Python module that a build step imports.

    If the module is missing, `what` is the error message and `next_step` is the suggested fix.
    """

    name: str
    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan for building an engine in `engine_dir`.

    - `weights`: the engine's weight format.
    - `steps`: the build steps, or empty if the engine kind serves the checkpoint directly.
    - `fingerprint`: the hash of `facts`.
    - `estimated_bytes`: the expected size of the files that the steps write, or 0 if unknown.
    - `facts`: all inputs that affect the engine.
    - `requires`: the modules that must be installed before the first step runs.
    - `container`: the container for the steps, or `None` if the steps run on this machine.
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
    container: BuildContainer | None = None

    def command_of(self, step: BuildStep, work: Path) -> tuple[str, ...]:
        """Return the command line of `step`, which writes its output files to `work`."""
        command = step.command_in(work)
        if self.container is None or step.is_local:
            return command
        return self.container.command_for(command, work)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-compatible dict for `--json`."""
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
                    "command": list(self.command_of(step, self.engine_dir)),
                    "inputs": list(step.inputs_in(self.engine_dir)),
                    "outputs": [str(path) for path in step.outputs_in(self.engine_dir)],
                    "estimated_bytes": step.estimated_bytes,
                }
                for step in self.steps
            ],
        }

    def describe(self) -> str:
        """Return a short description of the plan, with commands that can be pasted into a shell.

        If the plan has no steps, return the arguments for loading the checkpoint instead.
        """
        if not self.steps:
            arguments = self.facts.get("llm_arguments", {})
            return "\n".join(f"  {name}: {value}" for name, value in arguments.items())
        engine = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} engine"
        # Omit an unknown size. For example, the size of an OpenVINO engine is unknown if the model
        # shape comes from the catalog.
        size = f" (about {show_size(self.estimated_bytes)})" if self.estimated_bytes else ""
        lines = [
            f"Build {engine} for {self.model_name} ({self.weights} weights) from "
            f"{self.checkpoint.source}",
            f"into {self.engine_dir}{size}:",
        ]
        for step in self.steps:
            command = shlex.join(self.command_of(step, self.engine_dir))
            lines.append(f"  {step.title}:\n    {command}")
        return "\n".join(lines)


def facts_of_engine(checkpoint: Checkpoint, kind: str, weights: str) -> dict[str, Any]:
    """Return the facts that are part of every engine's fingerprint."""
    return {
        "plan": _PLAN_VERSION,
        "kind": kind,
        "weights": weights,
        **facts_of_checkpoint(checkpoint),
    }


def embedding_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the embedding settings to include in the fingerprint.

    Return an empty dict for a text-generation model. Raise `SourceError` if the embedding model's
    settings are not valid or not supported.
    """
    if not checkpoint.is_embedding_model:
        return {}
    return {"embedding": dataclasses.asdict(read_embedding(checkpoint.path))}


def check_num_gpus(request: BuildRequest, tools: Toolchain) -> None:
    """Raise `BadInput` if the number of GPUs is known and smaller than the engine's world size."""
    world_size = request.options.world_size
    if tools.num_gpus is not None and world_size > tools.num_gpus:
        raise BadInput(
            f"The engine needs {world_size} GPUs (tp x pp), but the number of available GPUs is "
            f"{tools.num_gpus}.",
            why="each engine rank runs on a separate GPU",
            next_step="reduce --tp or --pp, or run `tllm plan` to find values that fit",
        )
