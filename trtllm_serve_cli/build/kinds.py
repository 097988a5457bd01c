"""The engine kinds that this version builds, and which one fits a machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from trtllm_serve_cli.errors import MissingPart


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine kind, and one sentence that says why this one."""

    kind: str
    reason: str


def has_package(name: str) -> bool:
    """Whether the Python package `name` is installed here; it is not imported, parents are."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def choose_engine_kind(
    wanted: str, *, has_package: Callable[[str], bool] = has_package
) -> EngineChoice:
    """The engine kind for `wanted`, which may be "auto". Raises `MissingPart`."""
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
