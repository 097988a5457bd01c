"""Plan TensorRT engine builds for a TensorRT-LLM version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import (
    BuildPlan,
    BuildRequest,
    Toolchain,
    check_num_gpus,
    facts_of_engine,
)
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.checkpoint_facts import read_quantization
from trtllm_serve_cli.build.container import BuildContainer, plan_container
from trtllm_serve_cli.build.engine_options import EngineOptions, list_chosen
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.build.tensorrt.families import check_planned
from trtllm_serve_cli.build.tensorrt.tensorrt_plan import plan_tensorrt
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit, find_examples_dir
from trtllm_serve_cli.build.tensorrt.versions import parse_version
from trtllm_serve_cli.engine_kinds.describe_step import plan_describe_step
from trtllm_serve_cli.engine_kinds.tensorrt.default_limits import with_default_limits
from trtllm_serve_cli.engine_kinds.tensorrt.serving import PAGED_CONTEXT_PARAMETERS
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sources.checkpoint import read_config

# Default maximum number of draft tokens per step.
_MAX_DRAFT_LEN = 10


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """Return the build plan for the requested engine.

    Raise `BadInput` if the engine needs more GPUs than this machine has, or if the TensorRT-LLM
    version is unknown or cannot build the engine.
    """
    checkpoint, options = request.checkpoint, request.options
    check_num_gpus(request, tools)
    if tools.trtllm_version is None:
        raise BadInput(
            "The TensorRT-LLM version for the build is not known.",
            why="the tensorrt_llm package is not installed for this Python",
            next_step="set the version, for example --trtllm-version 0.17.0, and add --mode "
            "container to build in NVIDIA's image",
        )
    version = parse_version(tools.trtllm_version)
    config = read_config(checkpoint)
    check_planned(checkpoint.architecture)
    shape = replace(parse_shape(config), quantization=read_quantization(checkpoint))
    in_image = tools.container.examples if tools.container else None
    toolkit = Toolkit(version, in_image or find_examples_dir(version))
    steps = plan_tensorrt(
        shape,
        checkpoint.path,
        with_default_limits(request, tools, shape, version),
        toolkit,
        tools.gpu,
        published_name=str(config.get("_name_or_path") or checkpoint.source),
    )
    weights = options.quantization or options.dtype
    # Exclude the default limits from the facts, although these limits are part of the engine. The
    # other facts determine the limits, and new rules for limits must not trigger rebuilds of
    # existing engines.
    facts = {
        **facts_of_engine(checkpoint, request.kind, weights),
        "options": list_chosen(options),
        "folders": _stamp_folders(options),
        "tools": {"tensorrt_llm": str(version)},
        "gpu": tools.gpu_name,
    }
    fingerprint = fingerprint_of_facts(facts)
    describe = plan_describe_step(
        request,
        tools,
        title="Copy the tokenizer to the engine folder and describe the engine",
        weights=weights,
        fingerprint=fingerprint,
    )
    return BuildPlan(
        model_name=request.model_name,
        kind=request.kind,
        weights=weights,
        checkpoint=checkpoint,
        engine_dir=request.engine_dir,
        steps=(*steps, describe),
        fingerprint=fingerprint,
        estimated_bytes=sum(step.estimated_bytes for step in steps),
        facts=facts,
        container=_plan_container(tools, steps, request),
    )


def _plan_container(
    tools: Toolchain, steps: Sequence[BuildStep], request: BuildRequest
) -> BuildContainer | None:
    if tools.container is None:
        return None
    # `calib_dataset` is a folder or a Hugging Face data set name.
    words = (*(word for step in steps for word in step.inputs), request.options.calib_dataset or "")
    inputs = [Path(word) for word in words if word.startswith("/")]
    return plan_container(tools.container, inputs, request.engine_dir)


def complete_options(options: EngineOptions, parameters: Mapping[str, str]) -> EngineOptions:
    """Add the options that the repository's parameters or the decoding mode require.

    If the parameters contain a draft engine folder and no decoding mode is set, select the
    draft_tokens_external decoding mode. Enable paged context FMHA if a parameter or this mode
    requires it. The mode requires paged context FMHA, because the runtime verifies draft tokens
    only with KV cache reuse. Source: the error message "KV cache block reuse must be enabled for
    speculative decoding target model".

    Raise `BadInput` if `options` disables paged context FMHA although it is required, or if
    `max_beam_width` in `parameters` exceeds the beam width of the build.
    """
    _check_beam_width(options, parameters)
    if parameters.get("draft_engine_dir") and options.speculative_decoding_mode is None:
        options = replace(
            options,
            speculative_decoding_mode="draft_tokens_external",
            max_draft_len=options.max_draft_len or _MAX_DRAFT_LEN,
        )
    reasons = [
        f"{name}=true" for name in PAGED_CONTEXT_PARAMETERS if parameters.get(name) == "true"
    ]
    if options.speculative_decoding_mode == "draft_tokens_external":
        reasons.append("speculative_decoding_mode=draft_tokens_external")
    if not reasons or options.use_paged_context_fmha:
        return options
    if options.use_paged_context_fmha is False:
        raise BadInput(
            f"use_paged_context_fmha=false conflicts with {reasons[0]}.",
            why="without paged context FMHA, the server cannot load the engine",
            next_step="omit one of these two settings",
        )
    return replace(options, use_paged_context_fmha=True)


def _check_beam_width(options: EngineOptions, parameters: Mapping[str, str]) -> None:
    width = parameters.get("max_beam_width") or "1"
    limit = options.max_beam_width or 1  # trtllm-build's default
    if width.isdecimal() and int(width) > limit:
        raise BadInput(
            f"max_beam_width={width} conflicts with this build.",
            why=f"the engine would support a beam width of at most {limit}",
            next_step=f"add --max-beam-width {width}, or set max_beam_width={limit}",
        )


def _stamp_folders(options: EngineOptions) -> dict[str, list[list[Any]]]:
    """Return the name, size and modification time of each file, keyed by the path in `options`.

    A path is a folder or a file. The build reads these files, so a changed file requires a new
    build.
    """
    paths = [
        *options.lora_dir,
        *filter(None, [options.speculative_model]),
        *options.flag_paths,
    ]
    return {each: _stamp_files(Path(each)) for each in paths}


def _stamp_files(path: Path) -> list[list[Any]]:
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return [[each.name, stat.st_size, stat.st_mtime_ns] for each in files if (stat := each.stat())]
