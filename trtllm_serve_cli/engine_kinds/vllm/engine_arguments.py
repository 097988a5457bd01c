"""Convert engine options to vLLM's engine arguments.

Source of the names: vllm/engine/arg_utils.py and vllm/config in vllm-project/vllm 0.26.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trtllm_serve_cli.build.engine_options import LIMITS, EngineOptions, refuse_unsupported
from trtllm_serve_cli.engine_kinds.vllm.experts import plan_expert_arguments
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.serving_limits import ServingLimits

_SUPPORTED = frozenset(
    (
        *LIMITS, "tp", "pp", "moe_ep", "dtype", "quantization", "kv_cache_dtype",
        "tokens_per_block", "lora_dir", "lora_target_modules", "max_lora_rank",
    )
)  # fmt: skip
_KV_CACHE_DTYPES = ("auto", "fp8")
# The values that vLLM accepts for `max_lora_rank`.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def plan_vllm_arguments(
    options: EngineOptions, *, weights: str | None = None, trust_remote_code: bool = False
) -> dict[str, Any]:
    """Return vLLM's engine arguments, without the model path and the serving limits.

    `weights` is the checkpoint's quantization as a value of the `quantization` option, or None for
    unquantized weights. Raise `BadInput` if vLLM does not support an option.
    """
    refuse_unsupported(options, "vllm", supported=_SUPPORTED)
    arguments: dict[str, Any] = {
        "tensor_parallel_size": options.tp,
        "pipeline_parallel_size": options.pp,
    }
    if options.dtype != "auto":
        arguments["dtype"] = options.dtype
    if options.tokens_per_block is not None:
        arguments["block_size"] = options.tokens_per_block
    if trust_remote_code:
        arguments["trust_remote_code"] = True
    arguments |= plan_expert_arguments(options)
    return arguments | _quantization(options, weights) | _kv_cache(options) | _adapters(options)


def plan_vllm_limits(limits: ServingLimits) -> dict[str, Any]:
    """Return vLLM's engine arguments for the serving limits."""
    return {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_tokens,
    }


def fit_limits(arguments: Mapping[str, Any], requested: Collection[str]) -> dict[str, int]:
    """Return the limit to change so that a step has at least one token per sequence.

    vLLM rejects other limits. `requested` contains the names of the arguments that the user set.
    Raise `BadInput` if the user set both limits.
    """
    num_seqs, num_tokens = arguments.get("max_num_seqs"), arguments.get("max_num_batched_tokens")
    if not isinstance(num_seqs, int) or not isinstance(num_tokens, int) or num_seqs <= num_tokens:
        return {}
    if "max_num_batched_tokens" not in requested:
        return {"max_num_batched_tokens": num_seqs}
    if "max_num_seqs" not in requested:
        return {"max_num_seqs": num_tokens}
    raise BadInput(
        f"The limit of {num_seqs} sequences in a batch exceeds the limit of {num_tokens} tokens "
        "per step.",
        why="vLLM requires at least one token per step for each sequence",
        next_step=f"set --max-batch-size to {num_tokens} or less, or --max-num-tokens to "
        f"{num_seqs} or more",
    )


def _quantization(options: EngineOptions, weights: str | None) -> dict[str, Any]:
    """Return the argument that quantizes the weights to FP8 at load time, if FP8 was requested.

    Return no argument if the checkpoint already has the requested quantization, because vLLM
    detects it automatically. Raise `BadInput` for any other quantization.
    """
    requested = options.quantization
    if requested is None or requested == (weights or "none"):
        return {}
    if requested == "fp8" and weights is None:
        return {"quantization": "fp8"}
    raise BadInput(
        f"The vllm engine kind cannot serve this checkpoint with --quantization {requested}.",
        why=(
            "vLLM can quantize only unquantized weights, and only to fp8; the checkpoint's "
            f"weights are {weights or 'not quantized'}"
        ),
        next_step="use a checkpoint with this quantization, or omit --quantization",
    )


def _kv_cache(options: EngineOptions) -> dict[str, Any]:
    dtype = options.kv_cache_dtype
    if dtype in (None, "auto"):
        return {}
    if dtype not in _KV_CACHE_DTYPES:
        raise BadInput(
            f"The vllm engine kind does not support kv_cache_dtype {dtype}.",
            why=f"the supported values are {' and '.join(_KV_CACHE_DTYPES)}",
            next_step="set kv_cache_dtype to fp8, or omit kv_cache_dtype",
        )
    return {"kv_cache_dtype": dtype}


def _adapters(options: EngineOptions) -> dict[str, Any]:
    """Return the LoRA arguments.

    Either `lora_target_modules` or `max_lora_rank` enables LoRA. `lora_target_modules` does not
    restrict the modules, because vLLM allows adapters to change any module. Raise `BadInput` if
    `lora_dir` is set, or if vLLM does not support the rank.
    """
    if not (options.lora_dir or options.lora_target_modules or options.max_lora_rank):
        return {}
    if options.lora_dir:
        raise BadInput(
            "The vllm engine kind does not support lora_dir.",
            why="vLLM loads adapters at run time, not during a build",
            next_step="pass the adapter folder with --param lora_prefetch_dir=DIR, and set the "
            "maximum rank, for example --build-option max_lora_rank=16",
        )
    arguments: dict[str, Any] = {"enable_lora": True}
    if options.max_lora_rank is not None:
        check_lora_rank("max_lora_rank", options.max_lora_rank)
        arguments["max_lora_rank"] = options.max_lora_rank
    return arguments


def check_lora_rank(name: str, rank: int) -> None:
    """Raise `BadInput` if vLLM does not support the LoRA rank that the `name` option sets."""
    if rank not in _RANKS:
        raise BadInput(
            f"The vllm engine kind does not support {name} {rank}.",
            why=f"the supported ranks are {', '.join(map(str, _RANKS))}",
            next_step=f"set {name} to a supported rank",
        )
