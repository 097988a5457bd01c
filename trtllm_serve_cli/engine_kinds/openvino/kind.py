"""Declare the `openvino` engine kind, which is the default if no GPU engine is installed."""

from __future__ import annotations

from trtllm_serve_cli.engine_kinds.kind import Building, ContainerFit, Deployment, EngineKind
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Finding, Machine
from trtllm_serve_cli.engine_kinds.openvino.build_plan import TOOLS, plan_build
from trtllm_serve_cli.engine_kinds.openvino.described import describe_built
from trtllm_serve_cli.engine_kinds.openvino.engine_size import read_engine_size
from trtllm_serve_cli.engine_kinds.openvino.preview import preview_engine
from trtllm_serve_cli.engine_kinds.openvino.serving import SERVING
from trtllm_serve_cli.errors import MissingPart

_PACKAGE = "openvino-genai"
_INSTALL = "pip install 'trtllm-serve-cli[embedded]'"


def _offer(machine: Machine, trtllm_version: str | None) -> EngineChoice | None:
    if _PACKAGE not in machine.versions:
        return None
    reason = "Engine kind openvino: it runs on any CPU, and openvino-genai is installed."
    if machine.gpus:
        reason += (
            f" To use {machine.gpus_in_words} with TensorRT-LLM, run this command in one of "
            "NVIDIA's containers, or set --trtllm-version and build the engine in a container."
        )
    return EngineChoice("openvino", reason)


def _require(machine: Machine) -> str:
    if _PACKAGE not in machine.versions:
        raise MissingPart(
            "OpenVINO GenAI is not installed.",
            why="the openvino engine kind requires the openvino-genai package",
            next_step=f"run `{_INSTALL}` to install it",
        )
    return ""


def _check_machine(machine: Machine) -> Finding:
    version = machine.versions.get(_PACKAGE)
    if version is None:
        return Finding("engine openvino", "problem", "openvino-genai is missing", _INSTALL)
    return Finding("engine openvino", "ok", f"openvino-genai {version}")


KIND = EngineKind(
    name="openvino",
    summary="OpenVINO GenAI's continuous batching, on any CPU",
    package=_PACKAGE,
    offer=_offer,
    require=_require,
    check_machine=_check_machine,
    building=Building(
        plan=plan_build,
        formats=frozenset(TOOLS),
        tools=tuple(sorted({name for names in TOOLS.values() for name in names})),
        describe_built=describe_built,
        read_details=read_engine_size,
        preview=preview_engine,
    ),
    serving=SERVING,
    deployment=Deployment(lambda model: ContainerFit("Triton and openvino-genai")),
)
