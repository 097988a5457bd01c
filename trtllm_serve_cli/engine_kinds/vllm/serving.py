"""Serve a checkpoint with vLLM, in an engine worker or in Triton's vLLM backend."""

from __future__ import annotations

import json
from collections.abc import Mapping

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.checkpoint_serving import (
    MAX_BATCH_SIZE,
    MAX_NUM_TOKENS,
    front_ends,
    requested_limits,
    values_of,
)
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    ServingOptions,
    choose_context_length,
)
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import check_lora_rank, fit_limits
from trtllm_serve_cli.runtime.engines.engine_arguments import merge_arguments
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS

# The default `gpu_memory_utilization` in Triton's vLLM backend.
_GPU_MEMORY_UTILIZATION = 0.9
_LIMITS = ("max_num_seqs", "max_num_tokens")
_LORA_RANK = "lora_cache_max_adapter_size"


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameter values.

    Raise `BadInput` if an argument is invalid, if vLLM does not support the LoRA rank, if the
    context length is too large, or if the user set fewer tokens per step than sequences.
    """
    choose_context_length(engine, options, overrides)
    defaults = {
        "model": str(engine.path),
        "tokenizer": str(engine.path),
        "max_num_seqs": MAX_BATCH_SIZE,
        "max_model_len": engine.max_position_embeddings,
        "max_num_batched_tokens": MAX_NUM_TOKENS,
        "enable_chunked_prefill": True,
        "gpu_memory_utilization": _GPU_MEMORY_UTILIZATION,
    }
    limits = {_argument(name): limit for name, limit in requested_limits(options).items()}
    rest = json.loads(overrides.get(VLLM_ARGUMENTS.rest) or "{}")
    requested = merge_arguments(limits, rest)
    arguments = merge_arguments(merge_arguments(defaults, engine.llm_arguments or {}), requested)
    changed = {_argument(name): int(overrides[name]) for name in _LIMITS if overrides.get(name)}
    arguments |= fit_limits({**arguments, **changed}, {*requested, *changed})
    values = values_of(VLLM_ARGUMENTS, arguments)
    values |= front_ends(overrides, int(values["triton_max_batch_size"]))
    if arguments.get("enable_lora") and (rank := {**values, **overrides}.get(_LORA_RANK)):
        check_lora_rank(_LORA_RANK, int(rank))
    return values | {"engine_python": options.engine_python}


def _argument(parameter: str) -> str:
    return VLLM_ARGUMENTS.rows[parameter][0]


SERVING = Serving(
    layouts=("inflight", "gpt", "vllm", "embedding"),
    parameters=WORKER_PARAMETERS
    | frozenset(VLLM_ARGUMENTS.parameters)
    | {
        "lora_prefetch_dir", "lora_cache_host_memory_bytes", "gpu_device_ids", "batch_invariant",
        # These parameters have an effect only in the `vllm` layout, which uses Triton's vLLM
        # backend.
        "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size",
    },
    plan_values=_plan_values,
    merged=frozenset({VLLM_ARGUMENTS.rest}),
    backends={"vllm": "vllm"},
    native_layout="vllm",
)  # fmt: skip
