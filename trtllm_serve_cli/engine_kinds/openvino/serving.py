"""Serve an OpenVINO engine in an engine worker, where OpenVINO GenAI schedules the requests."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    CoreModel,
    ServingOptions,
    choose_context_length,
)

# Default size of the KV cache, in tokens per slot. A request may use more tokens than this; other
# requests then wait until the KV cache has space.
_KV_TOKENS_PER_SLOT = 512
_MAX_BATCH_SIZE = 64
_MAX_NUM_TOKENS = 256
_MAX_BEAM_WIDTH = 4


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    max_seq_len = choose_context_length(engine, options, overrides)
    max_batch_size = options.max_batch_size or _MAX_BATCH_SIZE
    kv_tokens = max(max_batch_size * _KV_TOKENS_PER_SLOT, max_seq_len)
    return {
        "triton_max_batch_size": str(max_batch_size),
        "max_num_seqs": str(max_batch_size),
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens or _MAX_NUM_TOKENS),
        "max_beam_width": str(options.max_beam_width or _MAX_BEAM_WIDTH),
        "max_tokens_in_paged_kv_cache": str(kv_tokens),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


SERVING = Serving(
    layouts=("inflight", "gpt", "llmapi", "vllm", "embedding"),
    parameters=WORKER_PARAMETERS
    | {
        "max_beam_width", "max_tokens_in_paged_kv_cache", "lora_cache_max_adapter_size",
        "lora_cache_host_memory_bytes", "lora_prefetch_dir", "max_loras", "num_threads",
        "num_draft_tokens", "draft_model_dir",
    },
    plan_values=_plan_values,
    # The engine worker does not load a tokenizer, so the `tensorrt_llm` model does not need the
    # tokenizer's path.
    core=CoreModel(omitted=frozenset({"tokenizer_dir"})),
)  # fmt: skip
