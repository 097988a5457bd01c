"""The engine kinds that this version builds, and which one fits a machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from trtllm_serve_cli.errors import BadInput, MissingPart


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine kind, and one sentence that says why this one."""

    kind: str
    reason: str


# Engine kinds that only what is there already can have: why, and what to do.
_NOT_BUILT = {
    "tensorrt": (
        "it takes a GPU and the trtllm-build of one TensorRT-LLM version",
        "build it there, then import what it left: -s engine:DIR --param tokenizer_dir=DIR",
    ),
    "vllm": (
        "vLLM serves the checkpoint as it is, through Triton's own backend",
        "choose its layout: --layout vllm",
    ),
}


def has_package(name: str) -> bool:
    """Whether the Python package `name` is installed here; it is not imported, parents are."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def choose_engine_kind(
    wanted: str, *, has_package: Callable[[str], bool] = has_package
) -> EngineChoice:
    """The engine kind to build for `wanted`, which may be "auto".

    Raises `BadInput` for a kind that is not built here, `MissingPart` for one that lacks a package.
    """
    if wanted in _NOT_BUILT:
        why, next_step = _NOT_BUILT[wanted]
        raise BadInput(
            f"No engine of the kind {wanted} is built here.", why=why, next_step=next_step
        )
    if not has_package("openvino_genai"):
        raise MissingPart(
            "The engine kind openvino is not installed.",
            why="the package openvino-genai is missing",
            next_step="pip install 'trtllm-serve-cli[embedded]'",
        )
    if wanted == "auto":
        return EngineChoice(
            "openvino", "Engine kind openvino: it runs on any CPU, and openvino-genai is installed."
        )
    return EngineChoice(wanted, f"Engine kind {wanted}, as asked for.")
