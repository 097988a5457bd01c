"""The plan of a build, by engine kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain, facts_of_engine
from trtllm_serve_cli.build.build_step import WORK, BuildStep
from trtllm_serve_cli.build.checkpoint_facts import read_weight_format
from trtllm_serve_cli.build.engine import ENGINE_FILE, Engine
from trtllm_serve_cli.build.engine_options import EngineOptions, list_chosen
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.build.installed import find_versions
from trtllm_serve_cli.build.tensorrt.tensorrt_plan import plan_tensorrt
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit, find_examples_dir
from trtllm_serve_cli.build.tensorrt.versions import find_trtllm_version, parse_version
from trtllm_serve_cli.engine_kinds.openvino.build_plan import TOOLS, plan_openvino
from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
from trtllm_serve_cli.engine_kinds.served_checkpoint import describe_pytorch, describe_vllm
from trtllm_serve_cli.engine_kinds.sim.build_plan import plan_sim
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import plan_vllm_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.families import FAMILIES
from trtllm_serve_cli.sizing.gpus import find_card, find_gpus
from trtllm_serve_cli.sizing.parallelism import check_parallelism
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sources.checkpoint import read_object

# Engine kinds that serve a checkpoint as it is: in whose words.
AS_IT_IS = {
    "pytorch": "There is nothing to build: TensorRT-LLM serves the checkpoint as it is.",
    "vllm": "There is nothing to build: vLLM serves the checkpoint as it is.",
}
# What is planned for where no version is stated or installed: the last with every engine kind.
_USUAL_TRTLLM = "1.2.1"


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """The steps to the engine that is wanted. Raises `BadInput` for what its kind cannot do."""
    if request.kind == "openvino":
        return plan_openvino(request, tools)
    if request.kind == "sim":
        return plan_sim(request, tools)
    if request.checkpoint.format != "hf":
        raise BadInput(
            f"The engine kind {request.kind} needs a Hugging Face checkpoint.",
            why=f"{request.checkpoint.source} is a GGUF file",
            next_step="import the model's checkpoint instead (-s hf:ORG/NAME), or this one with "
            "--engine openvino",
        )
    return (
        _plan_trtllm_build(request, tools)
        if request.kind == "tensorrt"
        else _plan_as_it_is(request, tools)
    )


def describe_checkpoint(request: BuildRequest, tools: Toolchain) -> Engine:
    """The checkpoint as an engine of a kind of `AS_IT_IS`. Raises `BadInput` as its plan does."""
    if request.kind == "vllm":
        return describe_vllm(
            request.model_name,
            request.checkpoint,
            request.options,
            trust_remote_code=request.trust_remote_code,
        )
    return describe_pytorch(
        request.model_name,
        request.checkpoint,
        request.options,
        _version_of(tools),
        trust_remote_code=request.trust_remote_code,
    )


def find_tools(trtllm_version: str | None = None) -> Toolchain:
    """What builds here: this Python and what it has installed, and the GPUs of this machine.

    A stated version of TensorRT-LLM takes the place of the one that is installed. Raises `BadInput`
    for one that is none.
    """
    packages = tuple(sorted({name for names in TOOLS.values() for name in names}))
    gpus = find_gpus()
    card = find_card(gpus[0].shown_as) if gpus else None
    installed = find_trtllm_version()
    version = parse_version(trtllm_version) if trtllm_version else installed
    return Toolchain(
        python=sys.executable,
        versions=find_versions(packages),
        trtllm_version=str(version) if version else None,
        gpu=card,
        gpu_name=card.name if card else (gpus[0].shown_as if gpus else None),
        num_gpus=len(gpus) or None,
    )


def _plan_trtllm_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    checkpoint, options = request.checkpoint, request.options
    _check_num_gpus(request, tools)
    if tools.trtllm_version is None:
        raise BadInput(
            "Which TensorRT-LLM is to build the engine is not known.",
            why="the package tensorrt_llm is not installed here",
            next_step="say --trtllm-version, such as 0.17.0, or run this in NVIDIA's container",
        )
    version = parse_version(tools.trtllm_version)
    shape = parse_shape(read_object(checkpoint.path / "config.json"))
    toolkit = Toolkit(version, find_examples_dir(version))
    steps = plan_tensorrt(shape, checkpoint.path, options, toolkit, tools.gpu)
    weights = options.quantization or options.dtype
    facts = {
        **facts_of_engine(checkpoint, "tensorrt", weights),
        "options": list_chosen(options),
        "folders": _stamp_folders(options),
        "tools": {"tensorrt_llm": str(version)},
        "gpu": tools.gpu_name,
    }
    fingerprint = fingerprint_of_facts(facts)
    describe = BuildStep(
        "Put the tokenizer beside the engine, and describe it",
        (
            tools.python, "-m", "trtllm_serve_cli.engine_kinds.tensorrt.describe_step", WORK,
            "--checkpoint", str(checkpoint.path), "--model-name", request.model_name,
            "--source", checkpoint.source, "--fingerprint", fingerprint,
        ),
        outputs=(f"{WORK}/{ENGINE_FILE}",),
    )  # fmt: skip
    return BuildPlan(
        model_name=request.model_name,
        kind="tensorrt",
        weights=weights,
        checkpoint=checkpoint,
        engine_dir=request.engine_dir,
        steps=(*steps, describe),
        fingerprint=fingerprint,
        estimated_bytes=sum(step.estimated_bytes for step in steps),
        facts=facts,
    )


def _plan_as_it_is(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    checkpoint, options = request.checkpoint, request.options
    _check_num_gpus(request, tools)
    _check_parallelism_if_known(request)
    facts = facts_of_engine(checkpoint, request.kind, options.dtype)
    weights = read_weight_format(checkpoint.path)
    facts["llm_arguments"] = (
        plan_llm_arguments(
            options,
            _version_of(tools),
            weights=weights,
            trust_remote_code=request.trust_remote_code,
        )
        if request.kind == "pytorch"
        else plan_vllm_arguments(
            options, weights=weights, trust_remote_code=request.trust_remote_code
        )
    )
    return BuildPlan(
        model_name=request.model_name,
        kind=request.kind,
        weights=options.dtype,
        checkpoint=checkpoint,
        engine_dir=checkpoint.path,
        steps=(),
        fingerprint=fingerprint_of_facts(facts),
        estimated_bytes=0,
        facts=facts,
    )


def _check_parallelism_if_known(request: BuildRequest) -> None:
    """These engines know models that this tool does not."""
    config = read_object(request.checkpoint.path / "config.json")
    if config.get("model_type") in FAMILIES:
        options = request.options
        check_parallelism(
            parse_shape(config), options.tp, options.pp, options.moe_tp, options.moe_ep
        )


def _stamp_folders(options: EngineOptions) -> dict[str, list[list[Any]]]:
    """The files, with size and time of change, of the folders that go into an engine."""
    folders = [*options.lora_dir, *filter(None, [options.speculative_model])]
    return {
        folder: [
            [path.name, stat.st_size, stat.st_mtime_ns]
            for path in sorted(Path(folder).glob("*"))
            if (stat := path.stat())
        ]
        for folder in folders
    }


def _version_of(tools: Toolchain) -> str:
    return tools.trtllm_version or _USUAL_TRTLLM


def _check_num_gpus(request: BuildRequest, tools: Toolchain) -> None:
    world_size = request.options.world_size
    if tools.num_gpus is not None and world_size > tools.num_gpus:
        raise BadInput(
            f"tp x pp is {world_size} GPUs, and this machine has {tools.num_gpus}.",
            why="each rank of the engine takes one",
            next_step="lower --tp or --pp; `tllm plan` says what fits",
        )
