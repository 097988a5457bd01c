"""Declare the `tensorrt` engine kind, which builds engines with `trtllm-build`."""

from __future__ import annotations

from trtllm_serve_cli.build.tensorrt.versions import FIRST_WITH_PYTORCH
from trtllm_serve_cli.engine_kinds.kind import Building, EngineKind
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.tensorrt.build_plan import complete_options, plan_build
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import (
    describe_built,
    describe_source,
    read_tensorrt_build,
)
from trtllm_serve_cli.engine_kinds.tensorrt.deployment import DEPLOYMENT
from trtllm_serve_cli.engine_kinds.tensorrt.serving import SERVING
from trtllm_serve_cli.engine_kinds.tensorrt_llm import describe_trtllm, find_usable_trtllm


def _offer(machine: Machine, trtllm_version: str | None) -> EngineChoice | None:
    version = find_usable_trtllm(machine, trtllm_version)
    if version is None or version >= FIRST_WITH_PYTORCH:
        return None
    origin = describe_trtllm(version, machine, is_requested=trtllm_version is not None)
    return EngineChoice(
        "tensorrt", f"Engine kind tensorrt: {origin}, serves the engines that it builds."
    )


KIND = EngineKind(
    name="tensorrt",
    summary="TensorRT engines, built by trtllm-build, on NVIDIA GPUs",
    package="tensorrt_llm",
    converts_to_fp8=True,
    offer=_offer,
    building=Building(
        plan=plan_build,
        complete_options=complete_options,
        request_options=frozenset(("trtllm_version",)),
        describe_built=describe_built,
        describe_source=describe_source,
        read_details=read_tensorrt_build,
    ),
    serving=SERVING,
    deployment=DEPLOYMENT,
)
