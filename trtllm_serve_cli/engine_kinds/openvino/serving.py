"""Serve an OpenVINO engine in an engine worker, where OpenVINO GenAI schedules the requests."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost, EngineSize, count_cache_tokens
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    CoreModel,
    ServingOptions,
    choose_context_length,
    show_limits,
)

# Default KV cache size, in tokens per slot, if the machine has enough memory. A request can use
# more tokens while other requests wait for free KV cache space.
_KV_TOKENS_PER_SLOT = 512
_MAX_BATCH_SIZE = 64
_MAX_NUM_TOKENS = 256
_MAX_BEAM_WIDTH = 4
_KV_TOKENS = "max_tokens_in_paged_kv_cache"


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    max_seq_len = choose_context_length(engine, options, overrides)
    max_batch_size = options.max_batch_size or _MAX_BATCH_SIZE
    is_set = overrides.get("max_seq_len") or options.max_seq_len or overrides.get(_KV_TOKENS)
    if not is_set:
        max_seq_len = _fit(max_seq_len, engine, options)
    kv_tokens = max(_fit(max_batch_size * _KV_TOKENS_PER_SLOT, engine, options), max_seq_len)
    return {
        "triton_max_batch_size": str(max_batch_size),
        "max_num_seqs": str(max_batch_size),
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens or _MAX_NUM_TOKENS),
        "max_beam_width": str(options.max_beam_width or _MAX_BEAM_WIDTH),
        _KV_TOKENS: str(kv_tokens),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


def _fit(num_tokens: int, engine: Engine, options: ServingOptions) -> int:
    """Return `num_tokens`, limited to the number of tokens that fit into the machine's memory.

    If the engine size or the machine is unknown, return `num_tokens`.
    """
    if not isinstance(engine.details, EngineSize) or options.host is None:
        return num_tokens
    return min(num_tokens, count_cache_tokens(engine.details, options.host))


def _describe_limits(engine: Engine, values: Mapping[str, str], host: CpuHost | None) -> str:
    limits = show_limits(int(values["max_num_seqs"]), int(values["max_num_tokens"]))
    if engine.embedding is None:
        limits += f", {int(values[_KV_TOKENS]):,} tokens in the KV cache"
        if (max_seq_len := int(values["max_seq_len"])) < engine.max_position_embeddings:
            limits += f", {max_seq_len:,} tokens per sequence"
    # If the number of threads is not set, show the engine's default for the host.
    num_threads = int(values.get("num_threads") or 0) or (host and host.num_threads)
    if num_threads:
        limits += f", {num_threads} thread{'s' * (num_threads > 1)}"
    return limits


SERVING = Serving(
    layouts=("inflight", "gpt", "llmapi", "vllm", "embedding"),
    parameters=WORKER_PARAMETERS
    | {
        "max_beam_width", _KV_TOKENS, "lora_cache_max_adapter_size",
        "lora_cache_host_memory_bytes", "lora_prefetch_dir", "max_loras", "num_threads",
        "num_draft_tokens", "draft_model_dir",
    },
    plan_values=_plan_values,
    # The engine worker does not load a tokenizer, so the `tensorrt_llm` model does not need the
    # tokenizer path.
    core=CoreModel(omitted=frozenset({"tokenizer_dir"})),
    describe_limits=_describe_limits,
)  # fmt: skip
