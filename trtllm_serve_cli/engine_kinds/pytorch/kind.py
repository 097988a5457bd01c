"""Declare the `pytorch` engine kind, which uses TensorRT-LLM's LLM API."""

from __future__ import annotations

import dataclasses
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.checkpoint_facts import read_quantization_method
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.tensorrt.versions import FIRST_WITH_PYTORCH
from trtllm_serve_cli.engine_kinds.kind import EngineKind
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.pytorch.deployment import DEPLOYMENT
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import (
    check_quantization_method,
    plan_llm_arguments,
    plan_llm_limits,
)
from trtllm_serve_cli.engine_kinds.pytorch.serving import SERVING
from trtllm_serve_cli.engine_kinds.served_checkpoint import serve_checkpoint
from trtllm_serve_cli.engine_kinds.tensorrt_llm import (
    PACKAGE,
    describe_trtllm,
    find_usable_trtllm,
)

# The TensorRT-LLM version to plan for if no version is requested or installed. This is the last
# version that supports both the `tensorrt` and the `pytorch` engine kind.
_DEFAULT_TRTLLM = "1.2.1"


def _offer(machine: Machine, trtllm_version: str | None) -> EngineChoice | None:
    version = find_usable_trtllm(machine, trtllm_version)
    if version is None or version < FIRST_WITH_PYTORCH:
        return None
    origin = describe_trtllm(version, machine, is_requested=trtllm_version is not None)
    return EngineChoice("pytorch", f"Engine kind pytorch: {origin}, serves a checkpoint directly.")


def _plan_arguments(
    request: BuildRequest, tools: Toolchain, quantized: str | None
) -> dict[str, Any]:
    check_quantization_method(read_quantization_method(request.checkpoint))
    return plan_llm_arguments(
        request.options,
        tools.trtllm_version or _DEFAULT_TRTLLM,
        weights=quantized,
        trust_remote_code=request.trust_remote_code,
    )


_BUILDING = serve_checkpoint(
    _plan_arguments,
    "Nothing to build: TensorRT-LLM serves the checkpoint directly.",
    plan_limits=plan_llm_limits,
)


def _describe(request: BuildRequest, tools: Toolchain) -> Engine:
    """Return the engine. Its `details` are the TensorRT-LLM version, or None if unknown."""
    assert _BUILDING.describe is not None
    return dataclasses.replace(_BUILDING.describe(request, tools), details=tools.trtllm_version)


KIND = EngineKind(
    name="pytorch",
    summary="TensorRT-LLM's LLM API, on NVIDIA GPUs",
    package=PACKAGE,
    offer=_offer,
    building=dataclasses.replace(
        _BUILDING, describe=_describe, request_options=frozenset(("trtllm_version",))
    ),
    serving=SERVING,
    deployment=DEPLOYMENT,
)
