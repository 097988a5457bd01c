"""Declare the `vllm` engine kind, which serves checkpoints with vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.tensorrt.versions import load_containers
from trtllm_serve_cli.engine_kinds.checkpoint_serving import count_gpus
from trtllm_serve_cli.engine_kinds.kind import (
    ContainerFit,
    Deployment,
    EngineKind,
    ModelView,
    RepositoryView,
)
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Finding, Machine
from trtllm_serve_cli.engine_kinds.served_checkpoint import serve_checkpoint
from trtllm_serve_cli.engine_kinds.vllm.context_length import read_scaled_length
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import (
    plan_vllm_arguments,
    plan_vllm_limits,
)
from trtllm_serve_cli.engine_kinds.vllm.experts import check_expert_blocks, complete_options
from trtllm_serve_cli.engine_kinds.vllm.serving import SERVING
from trtllm_serve_cli.errors import MissingPart, RepositoryError
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS
from trtllm_serve_cli.sources.checkpoint import read_config

_PACKAGE = "vllm"
_INSTALL = "python3 -m venv vllm-env && vllm-env/bin/pip install vllm"


def _offer(machine: Machine, trtllm_version: str | None) -> EngineChoice | None:
    python = machine.pythons.get(_PACKAGE)
    if python is None or not machine.gpus:
        return None
    reason = f"Engine kind vllm: {python} has vLLM, and this machine has {machine.gpus_in_words}."
    return EngineChoice("vllm", reason, python)


def _require(machine: Machine) -> str:
    python = machine.pythons.get(_PACKAGE)
    if python is None:
        raise MissingPart(
            "vLLM is not installed.",
            why="neither this Python nor any other Python on PATH has the vllm package",
            next_step=f"run `{_INSTALL}`, then add "
            "--param engine_python=$PWD/vllm-env/bin/python3 to `tllm import`",
        )
    return python


def _check_machine(machine: Machine) -> Finding | None:
    """Return a finding about vLLM, or None if the machine has neither vLLM nor a GPU."""
    if python := machine.pythons.get(_PACKAGE):
        return Finding("engine vllm", "ok", f"in {python}")
    if not machine.gpus:
        return None
    return Finding("engine vllm", "note", "no Python on PATH has the vllm package", _INSTALL)


def _plan_arguments(
    request: BuildRequest, tools: Toolchain, quantized: str | None
) -> dict[str, Any]:
    check_expert_blocks(read_config(request.checkpoint), request.options)
    return plan_vllm_arguments(
        request.options, weights=quantized, trust_remote_code=request.trust_remote_code
    )


_BUILDING = serve_checkpoint(
    _plan_arguments,
    "Nothing to build: vLLM serves the checkpoint directly.",
    plan_limits=plan_vllm_limits,
    read_length=read_scaled_length,
    # The remaining experts are distributed among the first GPUs. Source: `determine_expert_map` in
    # vllm/model_executor/layers/fused_moe/expert_map_manager.py, vllm-project/vllm.
    needs_equal_groups=False,
)


def _count_gpus(model: ModelView, repository: RepositoryView) -> int:
    """Return the number of GPUs that the arguments in the repository's manifest require.

    Raise `RepositoryError` if the arguments are invalid.
    """
    manifest = repository.manifest
    parameters = {**manifest["parameters"], **manifest.get("set", {})}
    try:
        rest = VLLM_ARGUMENTS.read_rest(parameters)
        return count_gpus({**(manifest["engine"]["llm_arguments"] or {}), **rest, **parameters})
    except (ValueError, TypeError) as error:
        raise RepositoryError(
            f"The number of GPUs cannot be read from {repository.path}.",
            why=str(error),
            next_step=f"correct {VLLM_ARGUMENTS.rest} with `tllm set {repository.target} "
            f"{VLLM_ARGUMENTS.rest}=JSON`",
        ) from error


def _fit_container(model: ModelView) -> ContainerFit:
    """Return the vLLM container from the same release as the newest TensorRT-LLM container."""
    container = load_containers()[-1]
    image = container.image.replace("-trtllm-", "-vllm-")
    return ContainerFit("Triton and vLLM", image, container)


KIND = EngineKind(
    name="vllm",
    summary="vLLM, on GPUs",
    package=_PACKAGE,
    any_python=True,
    converts_to_fp8=True,
    offer=_offer,
    require=_require,
    check_machine=_check_machine,
    building=dataclasses.replace(_BUILDING, complete_options=complete_options),
    serving=SERVING,
    deployment=Deployment(fit_container=_fit_container, count_gpus=_count_gpus),
)
