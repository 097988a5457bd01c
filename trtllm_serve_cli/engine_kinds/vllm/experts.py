"""Divide the experts of a mixture-of-experts model among GPUs for vLLM.

With expert parallelism, each GPU has complete experts. Otherwise, each expert is split across all
GPUs of a tensor-parallel group. Source: `FusedMoEParallelConfig.make` in
vllm/model_executor/layers/fused_moe/config.py, vllm-project/vllm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS
from trtllm_serve_cli.sizing.shape import find_shape, find_text_config


def complete_options(options: EngineOptions, parameters: Mapping[str, str]) -> EngineOptions:
    """Return the options with `moe_ep` if the parameters enable expert parallelism."""
    try:
        rest = VLLM_ARGUMENTS.read_rest(parameters)
    except ValueError:
        # The import rejects the invalid parameter when it plans the repository.
        return options
    if rest.get("enable_expert_parallel") is True and options.moe_ep is None and options.tp > 1:
        return replace(options, moe_ep=options.tp)
    return options


def plan_expert_arguments(options: EngineOptions) -> dict[str, Any]:
    """Return the engine argument for `moe_ep`.

    Raise `BadInput` unless `moe_ep` is 1 or `tp`, because vLLM does not divide the experts among
    some of the GPUs only.
    """
    if options.moe_ep in (None, 1):
        return {}
    if options.moe_ep == options.tp:
        return {"enable_expert_parallel": True}
    raise BadInput(
        f"The vllm engine kind does not support --moe-ep {options.moe_ep} with --tp {options.tp}.",
        why="vLLM divides the experts among all GPUs of a tensor-parallel group or splits each "
        "expert across them",
        next_step=f"set --moe-ep to {options.tp}, or omit --moe-ep",
    )


def check_expert_blocks(config: Mapping[str, Any], options: EngineOptions) -> None:
    """Raise `BadInput` if `tp` splits the FP8 blocks of the experts' weights.

    Each block has one scale. For example, Qwen3-30B-A3B-FP8 has experts with 768 columns and blocks
    of 128, so vLLM cannot split them across 4 GPUs (issue 25292 of vllm-project/vllm). `config` is
    the content of config.json. Models of unknown shapes are not checked.
    """
    quantization = find_text_config(config).get("quantization_config")
    blocks = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
    block = blocks[0] if isinstance(blocks, list) and blocks else None
    if type(block) is not int or block < 1 or options.moe_ep == options.tp:
        return
    shape = find_shape(config)
    experts = shape and shape.experts
    if experts is None or experts.intermediate_size % (options.tp * block) == 0:
        return
    raise BadInput(
        f"vLLM cannot split the experts of this model across --tp {options.tp} GPUs.",
        why=f"an expert has {experts.intermediate_size} columns, which cannot be divided by "
        f"{options.tp} into complete FP8 blocks of {block}",
        next_step=f"add --moe-ep {options.tp} to give each GPU complete experts, or reduce --tp",
    )
