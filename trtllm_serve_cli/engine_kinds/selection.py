"""The engine kinds, and which one fits a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trtllm_serve_cli.build.installed import find_python_with, find_version, python_has
from trtllm_serve_cli.build.tensorrt.versions import FIRST_WITH_PYTORCH, parse_version
from trtllm_serve_cli.errors import MissingPart
from trtllm_serve_cli.sizing.gpus import find_gpus


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine kind, one sentence that says why this one, and the Python that has its package.

    `python` is empty when the engine runs in the Python that Triton runs.
    """

    kind: str
    reason: str
    python: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine can be built of and for here: GPUs as their driver calls them, versions."""

    gpus: tuple[str, ...] = ()
    tensorrt_llm: str | None = None
    openvino_genai: str | None = None
    vllm_python: str | None = None

    @property
    def gpus_in_words(self) -> str:
        """Such as "4 x NVIDIA H200"."""
        return " and ".join(f"{count} x {name}" for name, count in Counter(self.gpus).items())


def detect_machine(wanted: str = "", engine_python: str = "") -> Machine:
    """The machine that this runs on, and what an engine of the kind `wanted` may need of it.

    `engine_python` is the one that was named for the engine. No package is imported.
    """
    gpus = tuple(gpu.shown_as for gpu in find_gpus())
    return Machine(
        gpus=gpus,
        vllm_python=_find_vllm_python(wanted, engine_python, has_gpus=bool(gpus)),
        tensorrt_llm=find_version("tensorrt_llm"),
        openvino_genai=find_version("openvino-genai"),
    )


def _find_vllm_python(wanted: str, named: str, *, has_gpus: bool) -> str | None:
    if wanted == "vllm":
        # At its word: it may be on the machine that serves.
        return named or find_python_with("vllm")
    if wanted != "auto" or not has_gpus:
        return None
    if named:
        return named if python_has(named, "vllm") else None
    return find_python_with("vllm")


def choose_engine_kind(
    wanted: str, machine: Machine, *, trtllm_version: str | None = None
) -> EngineChoice:
    """The engine kind for `wanted`, which may be "auto".

    A TensorRT-LLM that is stated counts as one that is here. Raises `BadInput` for a version that
    is none, `MissingPart` for a kind that lacks a package.
    """
    version = trtllm_version or machine.tensorrt_llm
    if wanted == "auto" and (trtllm_version or (version and machine.gpus)):
        return _choose_of_tensorrt_llm(machine, str(version), is_stated=bool(trtllm_version))
    if wanted == "vllm":
        if machine.vllm_python is None:
            raise MissingPart(
                "The engine kind vllm is not installed.",
                why="neither this Python nor one on PATH has the package vllm",
                next_step="python3 -m venv vllm-env && vllm-env/bin/pip install vllm, then add "
                "--param engine_python=$PWD/vllm-env/bin/python3",
            )
        return EngineChoice("vllm", "Engine kind vllm, as asked for.", machine.vllm_python)
    if wanted in ("tensorrt", "pytorch", "sim"):
        return EngineChoice(wanted, f"Engine kind {wanted}, as asked for.")
    if wanted == "auto" and machine.gpus and machine.vllm_python:
        reason = (
            f"Engine kind vllm: there is no TensorRT-LLM here for {machine.gpus_in_words}, and "
            f"{machine.vllm_python} has vLLM."
        )
        return EngineChoice("vllm", reason, machine.vllm_python)
    if machine.openvino_genai is None:
        raise MissingPart(
            "The engine kind openvino is not installed.",
            why="the package openvino-genai is missing",
            next_step="pip install 'trtllm-serve-cli[embedded]'",
        )
    if wanted == "openvino":
        return EngineChoice("openvino", "Engine kind openvino, as asked for.")
    reason = "Engine kind openvino: it runs on any CPU, and openvino-genai is installed."
    if machine.gpus:
        reason += (
            f" There is no TensorRT-LLM here for {machine.gpus_in_words}: run this in one of "
            "NVIDIA's containers, or say --trtllm-version and build there."
        )
    return EngineChoice("openvino", reason)


def _choose_of_tensorrt_llm(machine: Machine, version: str, *, is_stated: bool) -> EngineChoice:
    """TensorRT-LLM serves the engines that it builds, and since 1.0 checkpoints as they are."""
    found = parse_version(version)
    where = "as stated" if is_stated else f"which is installed, beside {machine.gpus_in_words}"
    if found < FIRST_WITH_PYTORCH:
        why = f"TensorRT-LLM {found}, {where}, serves the engines that it builds."
        return EngineChoice("tensorrt", f"Engine kind tensorrt: {why}")
    why = f"TensorRT-LLM {found}, {where}, serves a checkpoint as it is."
    return EngineChoice("pytorch", f"Engine kind pytorch: {why}")
