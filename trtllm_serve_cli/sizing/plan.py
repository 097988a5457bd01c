"""Determine the number of GPUs that a model requires and estimate the model's speed."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.assumptions import list_assumptions
from trtllm_serve_cli.sizing.capacity import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    Demand,
    Memory,
    plan_memory,
    weight_bytes,
)
from trtllm_serve_cli.sizing.facts import ModelFacts
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.kv_cache import kv_bytes_per_token
from trtllm_serve_cli.sizing.parallelism import Parallelism, check_parallelism
from trtllm_serve_cli.sizing.parameters import ParameterCounts, count_parameters
from trtllm_serve_cli.sizing.precision import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    Format,
    check_runs,
    name_weight_format,
)
from trtllm_serve_cli.sizing.roofline import Speed, estimate_speed
from trtllm_serve_cli.sizing.serving_limits import ServingLimits, choose_limits
from trtllm_serve_cli.sizing.shape import ModelShape
from trtllm_serve_cli.sizing.size_options import SizeOptions
from trtllm_serve_cli.sizing.stages import split_stages

_INPUT_LEN, _OUTPUT_LEN = 1024, 256
# Maximum number of GPUs to try if the model does not fit on `num_gpus` GPUs.
_MAX_GPUS = 128
# Bounds on the ratio of on-disk size to computed size. Above the maximum, the weights are stored in
# a wider type than the serving type. Below the minimum, the weights are quantized even though
# config.json does not specify a quantization, as in checkpoints from older ModelOpt versions.
_MIN_SCALE, _MAX_SCALE = 0.85, 1.15
_AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Formats:
    """The names of the number formats that a plan uses."""

    dtype: str
    quantization: str
    kv_cache_dtype: str


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """A model's memory use and speed with a given parallelism.

    `limits` are the default engine limits. `speed` and `limits` are None if the model does not fit.
    """

    parallelism: Parallelism
    memory: Memory
    speed: Speed | None = None
    limits: ServingLimits | None = None


@dataclass(frozen=True, slots=True)
class SizePlan:
    """The result of `tllm plan`.

    - `plans`: the plans to compare, each for at most `num_gpus` GPUs.
    - `smallest`: the plan with the fewest GPUs on which the model fits. If the model does not fit
      on `num_gpus` GPUs, larger powers of two are tried, up to 128 GPUs. None if the model does not
      fit on any of these numbers of GPUs.
    - `smallest_in_fp8`: the plan `smallest` with FP8 weights. None if `smallest` is None, if the
      GPU does not support FP8, if the options specify a quantization, or if the checkpoint is
      quantized.
    """

    facts: ModelFacts
    parameters: ParameterCounts
    formats: Formats
    kv_bytes_per_token: int
    gpu: Gpu
    num_gpus: int
    demand: Demand
    plans: tuple[ParallelPlan, ...]
    smallest: ParallelPlan | None
    smallest_in_fp8: ParallelPlan | None
    assumptions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that `--json` prints.

        Memory sizes are in bytes, lengths in tokens, and rates per second.
        """
        shape, demand = self.facts.shape, self.demand
        return {
            "source": self.facts.source,
            "architecture": shape.architecture,
            "weight_bytes": self.facts.weight_bytes,
            "parameters": {"total": self.parameters.total, **dataclasses.asdict(self.parameters)},
            **dataclasses.asdict(self.formats),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "gpu": self.gpu.name,
            "num_gpus": self.num_gpus,
            "input_len": demand.input_len,
            "output_len": demand.output_len,
            "max_seq_len": demand.max_seq_len,
            "max_batch_size": demand.max_batch_size,
            "max_num_tokens": demand.max_num_tokens,
            "kv_cache_free_gpu_mem_fraction": demand.kv_cache_free_gpu_mem_fraction,
            "plans": [_flatten(plan) for plan in self.plans],
            "smallest": _flatten(self.smallest) if self.smallest else None,
            "smallest_in_fp8": _flatten(self.smallest_in_fp8) if self.smallest_in_fp8 else None,
            "assumptions": list(self.assumptions),
        }


def plan_size(
    facts: ModelFacts, gpu: Gpu, num_gpus: int | None = None, options: SizeOptions | None = None
) -> SizePlan:
    """Plan the deployment of a model on up to `num_gpus` identical GPUs.

    If `num_gpus` is None, the limit is 8 GPUs or the number of GPUs that the options request,
    whichever is higher. Raise `BadInput` if the options request more than `num_gpus` GPUs, or if
    the model or the GPU does not support the options. Also raise `BadInput` if neither the bits per
    weight of the checkpoint's quantization nor its weight size is known.
    """
    options = options or SizeOptions()
    num_requested = (options.tp or 1) * (options.pp or 1)
    num_gpus = num_gpus or max(8, num_requested)
    if num_requested > num_gpus:
        raise BadInput(
            f"The options request {num_requested} GPUs, but the maximum is {num_gpus}.",
            why=f"--tp {options.tp or 1} times --pp {options.pp or 1} is {num_requested}",
            next_step="reduce --tp or --pp, or increase --num-gpus",
        )
    shape = facts.shape
    formats, weights, kv = _choose_formats(facts, gpu, options)
    demand = _choose_demand(facts, formats, weights, kv, options)

    plan = functools.partial(_plan_parallelism, shape, gpu, demand)
    plans = tuple(plan(each) for each in _list_parallelisms(shape, num_gpus, options))
    every = (plan(each) for each in _list_by_world_size(shape, num_gpus, options))
    smallest = next((each for each in every if each.speed), None)
    in_fp8 = None
    if smallest and gpu.fp8 and formats.quantization == "none" and not options.quantization:
        fp8 = dataclasses.replace(demand, weights=WEIGHT_FORMATS["fp8"], scale=1.0)
        in_fp8 = _plan_parallelism(shape, gpu, fp8, smallest.parallelism)
    return SizePlan(
        facts=facts,
        parameters=count_parameters(shape),
        formats=formats,
        kv_bytes_per_token=kv_bytes_per_token(shape, kv.bits),
        gpu=gpu,
        num_gpus=num_gpus,
        demand=demand,
        plans=plans,
        smallest=smallest,
        smallest_in_fp8=in_fp8,
        assumptions=list_assumptions(shape, demand, num_gpus),
    )


def _plan_parallelism(
    shape: ModelShape, gpu: Gpu, demand: Demand, parallelism: Parallelism
) -> ParallelPlan:
    memory = plan_memory(shape, parallelism, gpu, demand)
    if not (memory.fits and memory.num_sequences):
        return ParallelPlan(parallelism, memory)
    speed = estimate_speed(shape, parallelism, gpu, demand, memory.num_sequences)
    limits = choose_limits(shape, parallelism, gpu, demand, memory)
    return ParallelPlan(parallelism, memory, speed, limits)


def _flatten(plan: ParallelPlan) -> dict[str, Any]:
    speed = dataclasses.asdict(plan.speed) if plan.speed else {}
    return {
        **dataclasses.asdict(plan.parallelism),
        "memory": dataclasses.asdict(plan.memory),
        "limits": dataclasses.asdict(plan.limits) if plan.limits else None,
        **{name: round(value, 2) for name, value in speed.items()},
    }


def _list_parallelisms(
    shape: ModelShape, num_gpus: int, options: SizeOptions
) -> tuple[Parallelism, ...]:
    """Return the parallelism that the options request, or the parallelisms to compare.

    The parallelisms to compare use either `num_gpus` GPUs or a smaller power of two.
    """
    if options.tp or options.pp:
        one = check_parallelism(
            shape, options.tp or 1, options.pp or 1, options.moe_tp, options.moe_ep
        )
        return (one,)
    world_sizes = sorted({*_powers_of_two(num_gpus), num_gpus})
    found = tuple(
        each
        for world_size in world_sizes
        for each in _list_for_world_size(shape, world_size, num_gpus, options)
    )
    if not found:
        # Only --moe-tp and --moe-ep can exclude every parallelism. Call `check_parallelism` again
        # to raise `BadInput` with the reason.
        check_parallelism(shape, num_gpus, 1, options.moe_tp, options.moe_ep)
    return found


def _list_by_world_size(
    shape: ModelShape, num_gpus: int, options: SizeOptions
) -> tuple[Parallelism, ...]:
    """Return the parallelisms to try, in ascending order of GPU count.

    GPU counts above `num_gpus` are powers of two.
    """
    more = (world_size for world_size in _powers_of_two(_MAX_GPUS) if world_size > num_gpus)
    world_sizes = (*range(1, num_gpus + 1), *more)
    return tuple(
        each
        for world_size in world_sizes
        for each in _list_for_world_size(shape, world_size, num_gpus, options)
    )


def _list_for_world_size(
    shape: ModelShape, world_size: int, num_gpus: int, options: SizeOptions
) -> tuple[Parallelism, ...]:
    """Return the valid parallelisms with `world_size` GPUs in descending order of `tp`.

    `tp` is at most `num_gpus`.
    """
    found = []
    for tp in range(min(world_size, num_gpus), 0, -1):
        if world_size % tp == 0:
            try:
                found.append(
                    check_parallelism(shape, tp, world_size // tp, options.moe_tp, options.moe_ep)
                )
            except BadInput:
                continue
    return tuple(found)


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]


def _choose_formats(
    facts: ModelFacts, gpu: Gpu, options: SizeOptions
) -> tuple[Formats, Format, Format]:
    dtype = _choose_dtype(facts.shape, gpu, options)
    check_runs(dtype, WEIGHT_FORMATS[dtype], gpu, "pass --dtype float16")
    quantization = options.quantization or _name_stored_quantization(facts, WEIGHT_FORMATS[dtype])
    if quantization == "none":
        weights = WEIGHT_FORMATS[dtype]
    elif quantization in WEIGHT_FORMATS:
        weights = WEIGHT_FORMATS[quantization]
    else:
        weights = _measure_format(facts, WEIGHT_FORMATS[dtype])
    next_step = "pass --quantization int8, or choose another GPU with --gpu"
    check_runs(f"{quantization} weights", weights, gpu, next_step)
    kv_named = options.kv_cache_dtype or "auto"
    kv_name = dtype if kv_named == "auto" else kv_named
    check_runs(
        f"{kv_name} for the KV cache", KV_FORMATS[kv_name], gpu, "pass --kv-cache-dtype auto"
    )
    return Formats(dtype, quantization, kv_name), weights, KV_FORMATS[kv_name]


def _choose_dtype(shape: ModelShape, gpu: Gpu, options: SizeOptions) -> str:
    """Return the dtype name.

    For "auto", choose bfloat16 if the checkpoint uses bfloat16 and the GPU supports it. Otherwise,
    choose float16, as TensorRT-LLM does.
    """
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if shape.dtype == "bfloat16" and gpu.has_bf16 else "float16"


def _name_stored_quantization(facts: ModelFacts, dtype: Format) -> str:
    """Return the checkpoint's quantization, or "none" if the checkpoint is not quantized.

    Return "as stored" if only the weight size shows that the checkpoint is quantized.
    """
    if quantization := facts.shape.quantization:
        return name_weight_format(quantization) or quantization
    full = count_parameters(facts.shape).total * dtype.bits / 8
    if facts.weight_bytes and not facts.shape.is_part and facts.weight_bytes < _MIN_SCALE * full:
        return _AS_STORED
    return "none"


def _measure_format(facts: ModelFacts, others: Format) -> Format:
    """Return a format for a quantization whose number of bits is unknown.

    The format's `bits` is the average number of bits per parameter of the large matrices, computed
    from the checkpoint's weight size. Raise `BadInput` if the weight size is unknown.
    """
    if facts.weight_bytes is None:
        raise BadInput(
            f"The size of the {facts.shape.quantization} weights is unknown.",
            why="the checkpoint has neither an index with the weight size nor a single weight file",
            next_step="pass a --quantization value with a similar number of bits, for example int8",
        )
    stage = split_stages(facts.shape, Parallelism())[0]
    rest = (stage.replicated + stage.embedding + stage.head) * others.bits
    large = stage.matrices + stage.experts
    bits = (facts.weight_bytes * 8 - rest) / large
    if bits <= 0:
        # The size on disk shows that the embedding is also quantized, so use the average over all
        # parameters.
        bits = facts.weight_bytes * 8 / count_parameters(facts.shape).total
    return Format(bits)


def _choose_demand(
    facts: ModelFacts, formats: Formats, weights: Format, kv: Format, options: SizeOptions
) -> Demand:
    input_len, output_len = _choose_lengths(facts.shape, options)
    demand = Demand(
        weights=weights,
        others=WEIGHT_FORMATS[formats.dtype],
        kv=kv,
        input_len=input_len,
        output_len=output_len,
        max_seq_len=options.max_seq_len or input_len + output_len,
        max_batch_size=options.max_batch_size or MAX_BATCH_SIZE,
        max_num_tokens=options.max_num_tokens or MAX_NUM_TOKENS,
        kv_cache_free_gpu_mem_fraction=options.kv_cache_free_gpu_mem_fraction,
    )
    return dataclasses.replace(demand, scale=_find_scale(facts, demand, options))


def _find_scale(facts: ModelFacts, demand: Demand, options: SizeOptions) -> float:
    """Return the factor that adjusts computed weight sizes to match the size on disk.

    Return 1 if the size on disk is unknown or may include parts other than the language model. Also
    return 1 if the weights are not served in their stored format, or if the sizes differ by 15% or
    more.
    """
    own = facts.shape.quantization
    is_as_stored = options.quantization is None or (options.quantization == "none" and not own)
    if facts.weight_bytes is None or facts.shape.is_part or not is_as_stored:
        return 1.0
    by_shape = weight_bytes(split_stages(facts.shape, Parallelism())[0], demand)
    scale = facts.weight_bytes / by_shape
    return scale if _MIN_SCALE < scale < _MAX_SCALE else 1.0


def _choose_lengths(shape: ModelShape, options: SizeOptions) -> tuple[int, int]:
    """Return the input and output lengths in tokens.

    The sum of the two lengths is limited to `max_seq_len` or, if `max_seq_len` is not set, to the
    model's maximum length. Lengths that the options do not set are chosen to stay within the limit.
    Raise `BadInput` if the sum exceeds the limit, or if `max_seq_len` exceeds the model's maximum
    length.
    """
    max_positions = shape.max_position_embeddings
    if options.max_seq_len and max_positions and options.max_seq_len > max_positions:
        raise BadInput(
            f"--max-seq-len {options.max_seq_len} exceeds the model's maximum length.",
            why=f"the model supports at most {max_positions} tokens",
            next_step=f"pass --max-seq-len {max_positions} or less",
        )
    limit = options.max_seq_len or max_positions
    output_len = options.output_len or min(_OUTPUT_LEN, limit // 2 if limit else _OUTPUT_LEN)
    room = limit - output_len if limit else _INPUT_LEN
    usual = room if options.max_seq_len else min(_INPUT_LEN, room)
    input_len = options.input_len or max(1, usual)
    if limit and options.output_len is None:
        output_len = max(1, min(output_len, limit - input_len))
    if limit and input_len + output_len > limit:
        origin = "--max-seq-len" if options.max_seq_len else "the model's maximum length"
        raise BadInput(
            f"The input length {input_len} plus the output length {output_len} exceeds {limit}.",
            why=f"{origin} is {limit}",
            next_step="reduce --input-len or --output-len",
        )
    return input_len, output_len
