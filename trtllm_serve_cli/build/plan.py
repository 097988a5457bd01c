"""Which commands make an engine out of a checkpoint, as data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.build.engine import ENGINE_FILE
from trtllm_serve_cli.build.fingerprint import facts_of_checkpoint, fingerprint_of_facts
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources import Checkpoint, show_size

# Stands in a command for the folder that is being made.
WORK = "{work}"
# A change of what a plan means, made in this code, makes engines of older plans be built again.
_PLAN_VERSION = 3
# The packages whose versions decide what engine comes out of a checkpoint, by its format.
TOOLS = {
    "gguf": ("openvino", "openvino-genai"),
    "hf": ("openvino", "openvino-tokenizers", "optimum-intel", "nncf", "transformers", "torch"),
}
# What OpenVINO GenAI's GGUF reader takes.
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")

Quantization = Literal["int8", "int4", "none"]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What the engine is to be; `quantization` None means the default for the checkpoint's format.

    `python` is the interpreter that runs the steps, which needs the engine kind's packages;
    `tools` are the versions of those that it has.
    """

    python: str
    kind: str = "openvino"
    quantization: Quantization | None = None
    trust_remote_code: bool = False
    tools: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One command of a build. `outputs` are what it must leave, under WORK as in the command."""

    title: str
    command: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    estimated_bytes: int = 0

    def show(self, work: Path) -> str:
        """The command as a line for a shell, writing into `work`."""
        return shlex.join(self.command_in(work))

    def command_in(self, work: Path) -> tuple[str, ...]:
        """The command, writing into `work`."""
        return tuple(_in_work(word, work) for word in self.command)

    def outputs_in(self, work: Path) -> tuple[Path, ...]:
        """What the command must leave when it writes into `work`."""
        return tuple(Path(_in_work(word, work)) for word in self.outputs)


def _in_work(word: str, work: Path) -> str:
    is_there = word == WORK or word.startswith(f"{WORK}/")
    return word.replace(WORK, str(work), 1) if is_there else word


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The steps from a checkpoint to the engine at `engine_dir`.

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
    tools = {
        name: options.tools[name] for name in TOOLS[checkpoint.format] if name in options.tools
    }
    facts = {**facts_of_engine(checkpoint, options.kind, weights), "tools": tools}
    fingerprint = fingerprint_of_facts(facts)
    describe = BuildStep(
        "Describe the engine",
        (
            options.python, "-m", "trtllm_serve_cli.build.describe_openvino", WORK,
            "--checkpoint", str(checkpoint.path), "--model-name", name,
            "--source", checkpoint.source, "--architecture", checkpoint.architecture,
            "--weights", weights, "--fingerprint", fingerprint,
        ),
        outputs=(f"{WORK}/{ENGINE_FILE}",),
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
        facts=facts,
    )


_OPENVINO_FILES = tuple(
    f"{WORK}/openvino_{name}.xml" for name in ("model", "tokenizer", "detokenizer")
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
    title = "Convert the GGUF file to OpenVINO's format"
    return "as in the GGUF", BuildStep(title, command, outputs=_OPENVINO_FILES)


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
    step = BuildStep(title.replace("none", "16-bit"), (*command, WORK), outputs=_OPENVINO_FILES)
    return weights, step


def facts_of_engine(checkpoint: Checkpoint, kind: str, weights: str) -> dict[str, Any]:
    """What every engine follows from, whatever its kind."""
    return {
        "plan": _PLAN_VERSION,
        "kind": kind,
        "weights": weights,
        **facts_of_checkpoint(checkpoint),
    }
