"""Find the TensorRT-LLM version that the `tensorrt` and `pytorch` engine kinds use."""

from __future__ import annotations

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import parse_version
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.errors import BadInput

PACKAGE = "tensorrt_llm"


def find_usable_trtllm(machine: Machine, requested: str | None) -> Version | None:
    """Return the requested version, or the installed version if the machine has GPUs.

    Return None if no version is requested and no usable version is installed. Raise `BadInput` if
    `requested` is not a version.
    """
    version = requested or (machine.versions.get(PACKAGE) if machine.gpus else None)
    return parse_version(version) if version else None


def describe_trtllm(version: Version, machine: Machine, *, is_requested: bool) -> str:
    """Return a phrase such as "TensorRT-LLM 1.0, installed here with 4 x NVIDIA H200"."""
    origin = "as requested" if is_requested else f"installed here with {machine.gpus_in_words}"
    return f"TensorRT-LLM {version}, {origin}"


def find_version(text: str) -> Version | None:
    """Return `text` as a version, or None if it is not a version."""
    try:
        return parse_version(text)
    except BadInput:
        return None
