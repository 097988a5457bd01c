"""Plan the steps that build a TensorRT engine from a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.checkpoint_step import plan_checkpoint
from trtllm_serve_cli.build.tensorrt.checks import check_gpu, check_options
from trtllm_serve_cli.build.tensorrt.engine_step import plan_engine
from trtllm_serve_cli.build.tensorrt.families import find_family
from trtllm_serve_cli.build.tensorrt.toolkit import Toolkit
from trtllm_serve_cli.build.tensorrt.versions import check_builds_engines
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
) -> tuple[BuildStep, ...]:
    """Return the steps that build an engine in `WORK` from the Hugging Face folder `checkpoint`.

    The first step writes a TensorRT-LLM checkpoint to `SCRATCH`. The second step builds the engine
    from this checkpoint. If `gpu` is set, check that this GPU can run the engine. Raise `BadInput`
    if the model, the version or the GPU does not support an option.
    """
    version = toolkit.version
    check_builds_engines(version)
    family = find_family(shape.architecture, version)
    check_options(options, shape, family, version)
    dtype = resolve_dtype(options, shape)
    if gpu:
        check_gpu(options, dtype, gpu, version)
    size = estimate_bytes(shape, options)
    return (
        plan_checkpoint(checkpoint, options, toolkit, family, dtype, size),
        plan_engine(options, version, dtype, size),
    )


def resolve_dtype(options: EngineOptions, shape: ModelShape) -> str:
    """Return the data type of unquantized weights. Resolve "auto" to bfloat16 or float16."""
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if shape.dtype == "bfloat16" else "float16"


def estimate_bytes(shape: ModelShape, options: EngineOptions) -> int:
    """Estimate the size of the converted weights in bytes, without the much smaller scales."""
    counts = count_parameters(shape)
    matrices = counts.attention + counts.mlp + counts.experts
    whole = WEIGHT_FORMATS[resolve_dtype(options, shape)].bits
    weights = options.quantization or "none"
    bits = whole if weights == "none" else WEIGHT_FORMATS[weights].bits
    return int(matrices * bits + (counts.total - matrices) * whole) // 8
