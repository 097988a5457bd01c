"""Plan the steps that build a TensorRT engine from a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.checkpoint_step import (
    find_planned_program,
    find_programs,
    plan_checkpoint,
)
from trtllm_serve_cli.build.tensorrt.checks import check_gpu, check_legacy_options, check_options
from trtllm_serve_cli.build.tensorrt.engine_step import TRTLLM_BUILD, plan_engine
from trtllm_serve_cli.build.tensorrt.extra_flags import check_flags
from trtllm_serve_cli.build.tensorrt.families import (
    find_family,
    find_legacy_family,
    uses_build_py,
)
from trtllm_serve_cli.build.tensorrt.legacy_step import find_legacy_programs, plan_legacy
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit
from trtllm_serve_cli.build.tensorrt.versions import check_builds_engines
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.parameters import count_parameters
from trtllm_serve_cli.sizing.precision import WEIGHT_FORMATS
from trtllm_serve_cli.sizing.shape import ModelShape


def plan_tensorrt(
    shape: ModelShape,
    checkpoint: Path,
    options: EngineOptions,
    toolkit: Toolkit,
    gpu: Gpu | None = None,
    *,
    published_name: str = "",
) -> tuple[BuildStep, ...]:
    """Return the steps that build an engine in `WORK` from a Hugging Face checkpoint.

    The first step writes a TensorRT-LLM checkpoint to `SCRATCH`. The second step builds the engine
    from this checkpoint. Versions that use a model's build.py require other steps (see
    `plan_legacy`). `published_name`, which determines the variant of some models, is the
    `_name_or_path` in config.json or the checkpoint's source.

    Raise `BadInput` if the version cannot build an engine for the model or for `gpu`, or if options
    contradict each other. Also raise `BadInput` if the model, the version or `gpu` does not support
    an option.
    """
    version = toolkit.version
    check_builds_engines(version)
    dtype = resolve_dtype(options, shape)
    size = estimate_bytes(shape, options)
    if uses_build_py(shape.architecture, version):
        legacy = find_legacy_family(shape.architecture, version)
        check_legacy_options(options, shape, version)
        if gpu:
            check_gpu(options, dtype, gpu, version)
        _check_flags(options, shape, find_legacy_programs(legacy, version), version)
        return plan_legacy(shape.architecture, legacy, checkpoint, options, toolkit, dtype, size)
    family = find_family(shape.architecture, version)
    check_options(options, shape, family, version)
    if gpu:
        check_gpu(options, dtype, gpu, version)
    planned = find_planned_program(options, family, version), TRTLLM_BUILD
    _check_flags(options, shape, planned, version)
    variant = family.variants.find(shape, published_name) if family.variants else None
    return (
        plan_checkpoint(checkpoint, options, toolkit, family, dtype, size, variant),
        plan_engine(options, version, dtype, size),
    )


def _check_flags(
    options: EngineOptions, shape: ModelShape, planned: tuple[str, ...], version: Version
) -> None:
    def programs_of(other: Version) -> tuple[str, ...]:
        return _list_programs(shape.architecture, options, other)

    check_flags(options.flags, planned, version, programs_of)


def _list_programs(architecture: str, options: EngineOptions, version: Version) -> tuple[str, ...]:
    """Return the programs that can build an engine for the architecture.

    Return an empty tuple if `version` does not support the architecture.
    """
    try:
        if uses_build_py(architecture, version):
            return find_legacy_programs(find_legacy_family(architecture, version), version)
        family = find_family(architecture, version)
    except BadInput:
        return ()
    return (*find_programs(options, family), TRTLLM_BUILD)


def resolve_dtype(options: EngineOptions, shape: ModelShape) -> str:
    """Return the data type of unquantized weights.

    Resolve "auto" to bfloat16 if this is the checkpoint's data type, otherwise to float16.
    """
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if shape.dtype == "bfloat16" else "float16"


def estimate_bytes(shape: ModelShape, options: EngineOptions) -> int:
    """Return the estimated size of the converted weights, in bytes.

    `options.quantization` applies only to the attention, MLP and expert matrices.
    """
    counts = count_parameters(shape)
    matrices = counts.attention + counts.mlp + counts.experts
    whole = WEIGHT_FORMATS[resolve_dtype(options, shape)].bits
    weights = options.quantization or "none"
    bits = whole if weights == "none" else WEIGHT_FORMATS[weights].bits
    return int(matrices * bits + (counts.total - matrices) * whole) // 8
