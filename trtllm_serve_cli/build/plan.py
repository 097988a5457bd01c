"""Which commands make an engine out of a checkpoint, as data."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources import Checkpoint, show_size

# Stands in a command for the folder that is being made.
WORK = "{work}"
# A change of what a plan means, made in this code, makes engines of older plans be built again.
_PLAN_VERSION = 2
# What OpenVINO GenAI's GGUF reader takes.
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")

Quantization = Literal["int8", "int4", "none"]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What the engine is to be; `quantization` None means the default for the checkpoint's format.

    `python` is the interpreter that runs the steps, which needs the engine kind's packages.
    """

    python: str
    kind: str = "openvino"
    quantization: Quantization | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One command of a build."""

    title: str
    command: tuple[str, ...]

    def show(self, work: Path) -> str:
        """The command as a line for a shell, writing into `work`."""
        return shlex.join(self.command_in(work))

    def command_in(self, work: Path) -> tuple[str, ...]:
        """The command, writing into `work`."""
        return tuple(str(work) if word == WORK else word for word in self.command)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The steps from a checkpoint to the engine at `engine_dir`."""

    model_name: str
    kind: str
    weights: str
    checkpoint: Checkpoint
    engine_dir: Path
    steps: tuple[BuildStep, ...]
    fingerprint: str
    estimated_bytes: int

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
            "estimated_bytes": self.estimated_bytes,
            "steps": [
                {"title": step.title, "command": list(step.command_in(self.engine_dir))}
                for step in self.steps
            ],
        }

    def describe(self) -> str:
        """The plan in a few lines, its commands ready to paste."""
        lines = [
            f"Build an {self.kind} engine for {self.model_name} ({self.weights} weights) from "
            f"{self.checkpoint.source}",
            f"into {self.engine_dir} (about {show_size(self.estimated_bytes)}):",
        ]
        lines += [f"  {step.title}:\n    {step.show(self.engine_dir)}" for step in self.steps]
        return "\n".join(lines)


def plan_build(
    name: str, checkpoint: Checkpoint, engine_dir: Path, options: BuildOptions
) -> BuildPlan:
    """The steps for this checkpoint. Raises `BadInput` for what the engine kind cannot do."""
    if checkpoint.format == "gguf":
        weights, make = _plan_gguf(checkpoint, options)
    else:
        weights, make = _plan_export(checkpoint, options)
    fingerprint = fingerprint_of_checkpoint(checkpoint, options.kind, weights)
    describe = BuildStep(
        "Describe the engine",
        (
            options.python, "-m", "trtllm_serve_cli.build.describe_openvino", WORK,
            "--checkpoint", str(checkpoint.path), "--model-name", name,
            "--source", checkpoint.source, "--architecture", checkpoint.architecture,
            "--weights", weights, "--fingerprint", fingerprint,
        ),
    )  # fmt: skip
    return BuildPlan(
        model_name=name,
        kind=options.kind,
        weights=weights,
        checkpoint=checkpoint,
        engine_dir=engine_dir,
        steps=(make, describe),
        fingerprint=fingerprint,
        estimated_bytes=int(checkpoint.size_bytes * _SIZE_FACTORS[weights]),
    )


# Size of the engine over that of the checkpoint: 16-bit weights become 8 or 4 bits with scales.
_SIZE_FACTORS = {"as in the GGUF": 1.05, "int8": 0.55, "int4": 0.35, "none": 1.05}


def _plan_gguf(checkpoint: Checkpoint, options: BuildOptions) -> tuple[str, BuildStep]:
    if options.quantization is not None:
        raise BadInput(
            f"--quantization {options.quantization} does not go with a GGUF file.",
            why="its weights are quantised already, and stay as they are",
            next_step="leave --quantization out, or choose another GGUF file",
        )
    if checkpoint.architecture not in GGUF_ARCHITECTURES:
        raise BadInput(
            f"The engine kind openvino cannot read a GGUF file of the architecture "
            f"{checkpoint.architecture!r}.",
            why=f"OpenVINO GenAI reads {', '.join(GGUF_ARCHITECTURES)}",
            next_step="import the model's Hugging Face checkpoint instead: -s hf:ORG/NAME",
        )
    command = (
        options.python, "-m", "trtllm_serve_cli.build.gguf_to_openvino",
        str(checkpoint.path), WORK,
    )  # fmt: skip
    return "as in the GGUF", BuildStep("Convert the GGUF file to OpenVINO's format", command)


def _plan_export(checkpoint: Checkpoint, options: BuildOptions) -> tuple[str, BuildStep]:
    weights = options.quantization or "int8"
    weight_format = {"int8": "int8", "int4": "int4", "none": "fp16"}[weights]
    command: tuple[str, ...] = (
        options.python, "-m", "optimum.commands.optimum_cli", "export", "openvino",
        "--model", str(checkpoint.path), "--task", "text-generation-with-past",
        "--weight-format", weight_format,
    )  # fmt: skip
    if options.trust_remote_code:
        command += ("--trust-remote-code",)
    title = f"Export the checkpoint to OpenVINO's format with {weights} weights"
    return weights, BuildStep(title.replace("none", "16-bit"), (*command, WORK))


def fingerprint_of_checkpoint(checkpoint: Checkpoint, kind: str, weights: str) -> str:
    """Changes when another engine would come of it."""
    facts = (
        _PLAN_VERSION,
        checkpoint.source,
        checkpoint.size_bytes,
        checkpoint.modified_ns,
        kind,
        weights,
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
