"""What is particular to repositories whose engine is vLLM in a worker of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import check_lora_rank
from trtllm_serve_cli.repository.kinds.checkpoints import MAX_BATCH_SIZE, MAX_NUM_TOKENS, values_of
from trtllm_serve_cli.repository.layouts.vllm import asked_limits
from trtllm_serve_cli.repository.model.instances import front_ends
from trtllm_serve_cli.repository.model.model_config import ServingOptions
from trtllm_serve_cli.runtime.engines.engine_arguments import merge_arguments
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine

# As upstream's backend has it.
_GPU_MEMORY_UTILIZATION = 0.9
_LORA_RANK = "lora_cache_max_adapter_size"


def vllm_engine_values(
    engine: Engine, options: ServingOptions, given: Mapping[str, str]
) -> dict[str, str]:
    """Parameter -> value, as the engine and the options ask; `given` are the user's own.

    Raises `BadInput` for a rank of adapters that vLLM has no kernels for.
    """
    usual = {
        "model": str(engine.path),
        "tokenizer": str(engine.path),
        "max_num_seqs": MAX_BATCH_SIZE,
        "max_model_len": engine.max_position_embeddings,
        "max_num_batched_tokens": MAX_NUM_TOKENS,
        "enable_chunked_prefill": True,
        "gpu_memory_utilization": _GPU_MEMORY_UTILIZATION,
    }
    asked = {VLLM_ARGUMENTS.rows[name][0]: limit for name, limit in asked_limits(options).items()}
    said = merge_arguments(merge_arguments(usual, engine.llm_arguments or {}), asked)
    said = merge_arguments(said, json.loads(given.get(VLLM_ARGUMENTS.rest) or "{}"))
    values = values_of(VLLM_ARGUMENTS, said) | front_ends(given)
    if said.get("enable_lora") and (rank := {**values, **given}.get(_LORA_RANK)):
        check_lora_rank(_LORA_RANK, int(rank))
    return values | {"engine_python": options.engine_python}
