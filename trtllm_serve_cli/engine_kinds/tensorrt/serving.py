"""Serve a TensorRT engine with Triton's `tensorrtllm` C++ backend.

The `config.pbtxt` contains every parameter of NVIDIA's template for the engine's TensorRT-LLM
version. Unset parameters are empty strings. Every backend version ignores empty strings, because it
cannot convert them. Since 0.19, the backend does not load a model without the keys
`gpt_model_type`, `tokenizer_dir`, `guided_decoding_backend` and `xgrammar_tokenizer_info_path`.
Source: `model_instance_state.cc` in triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_serve_cli.build.engine import TOKENIZER_FOLDER, Engine
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.engine_kinds.kind import Serving
from trtllm_serve_cli.engine_kinds.serving import (
    DRAFT_MODEL,
    CoreModel,
    ServingOptions,
    show_limits,
)
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import built_of
from trtllm_serve_cli.engine_kinds.tensorrt.draft import describe_draft
from trtllm_serve_cli.errors import BadInput

# Template parameters that the C++ backend supports but some other engine kinds do not.
_PARAMETERS = frozenset(
    (
        "tokenizer_type", "visual_model_path", "max_num_sequences", "max_kv_cache_length",
        "multimodal_model_path", "max_num_images", "tensorrt_llm_draft_model_name",
        "draft_engine_dir", "draft_gpu_device_ids", "draft_kv_cache_free_gpu_mem_fraction",
        "multimodal_encoders_name", "triton_backend",
        "encoder_engine_dir", "batching_strategy", "max_beam_width",
        "max_tokens_in_paged_kv_cache", "kv_cache_free_gpu_mem_fraction",
        "cross_kv_cache_fraction", "kv_cache_host_memory_bytes", "kv_cache_onboard_blocks",
        "enable_chunked_context", "batch_scheduler_policy", "stats_check_period_ms",
        "iter_stats_max_iterations", "request_stats_max_iterations", "normalize_log_probs",
        "max_attention_window_size", "sink_token_length", "decoding_mode", "lookahead_window_size",
        "lookahead_ngram_size", "lookahead_verification_set_size", "medusa_choices",
        "eagle_choices", "speculative_decoding_fast_logits", "guided_decoding_backend",
        "xgrammar_tokenizer_info_path", "lora_cache_optimal_adapter_size",
        "lora_cache_max_adapter_size", "lora_cache_gpu_memory_fraction",
        "lora_cache_host_memory_bytes", "lora_prefetch_dir", "gpu_device_ids", "participant_ids",
        "num_nodes", "gpu_weights_percent", "enable_trt_overlap", "enable_context_fmha_fp32_acc",
        "multi_block_mode", "cuda_graph_mode", "cuda_graph_cache_size", "logits_datatype",
        "encoder_input_features_data_type", "prompt_embedding_table_data_type",
        "lora_weights_data_type",
    )
)  # fmt: skip
# Parameters that require an engine with paged context FMHA. Without paged context FMHA, some
# versions of the backend fail to load the engine ("When KV cache block reuse is set, model has to
# be built with paged context FMHA support", triton-inference-server/tensorrtllm_backend#251).
PAGED_CONTEXT_PARAMETERS = ("enable_kv_cache_reuse", "enable_chunked_context")
_BACKEND = "tensorrtllm"
# Entries with fixed values in NVIDIA's template.
_FIXED = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
}
_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameter values.

    Raise `BadInput` if an option exceeds the engine's limits or can only be set during the build.
    """
    built = built_of(engine)
    _check_decided_at_build(options)
    has_draft = bool(overrides.get("draft_engine_dir"))
    batch_size = options.max_batch_size or built.max_batch_size
    beam_width = options.max_beam_width or built.max_beam_width
    _check_within("--max-batch-size", batch_size, built.max_batch_size)
    _check_within("--max-beam-width", beam_width, built.max_beam_width)
    return {
        "triton_max_batch_size": str(batch_size),
        "max_beam_width": str(beam_width),
        "max_seq_len": str(built.max_seq_len),
        "tokenizer_dir": str(engine.path / TOKENIZER_FOLDER),
        "engine_dir": str(engine.path),
        "enable_kv_cache_reuse": str(built.has_paged_context_fmha).lower(),
        "logits_datatype": _tensor_type(built.logits_dtype),
        "prompt_embedding_table_data_type": _tensor_type(built.dtype),
        "lora_weights_data_type": _tensor_type(built.dtype),
        **({"tensorrt_llm_draft_model_name": DRAFT_MODEL} if has_draft else {}),
    }


def _describe_limits(engine: Engine, values: Mapping[str, str], host: CpuHost | None) -> str:
    built = built_of(engine)
    num_tokens = built.max_num_tokens
    return show_limits(built.max_batch_size, num_tokens) if num_tokens else ""


def _check_values(engine: Engine, values: Mapping[str, str]) -> None:
    backend = values["triton_backend"]
    if backend != _BACKEND:
        raise BadInput(
            f"tllm cannot create a model repository with triton_backend={backend}.",
            why="the code for this backend is only in NVIDIA's repository, not in tllm",
            next_step="omit triton_backend to serve the same engine with the C++ backend",
        )
    built = built_of(engine)
    width = int(values["max_beam_width"] or 1)
    _check_within("max_beam_width", width, built.max_beam_width)
    for name in PAGED_CONTEXT_PARAMETERS:
        if values.get(name) == "true" and not built.has_paged_context_fmha:
            raise BadInput(
                f"The engine does not support {name}=true.",
                why="the engine was built without use_paged_context_fmha",
                next_step=(
                    "build the engine again with --build-option "
                    f"use_paged_context_fmha=true, or set {name}=false"
                ),
            )


def _check_decided_at_build(options: ServingOptions) -> None:
    for name in ("max_seq_len", "max_num_tokens"):
        if getattr(options, name) is not None:
            option = "--" + name.replace("_", "-")
            raise BadInput(
                f"{option} cannot be changed for a built engine.",
                why="trtllm-build sets this limit during the build",
                next_step=f"omit {option}, or build the engine again",
            )


def _check_within(name: str, value: int, limit: int) -> None:
    if value > limit:
        raise BadInput(
            f"{name} {value} exceeds the engine's limit.",
            why=f"the engine was built for at most {limit}",
            next_step=f"set {name} to {limit} or less, or build the engine again with a "
            "higher limit",
        )


def _tensor_type(dtype: str) -> str:
    return _TYPES.get(dtype, "TYPE_FP16")


SERVING = Serving(
    layouts=("inflight",),
    parameters=_PARAMETERS,
    plan_values=_plan_values,
    core=CoreModel(backend_parameter="triton_backend", entries=_FIXED),
    check_values=_check_values,
    describe_limits=_describe_limits,
    empty_is_default=True,
    describe_draft=describe_draft,
    draft_parameter="draft_engine_dir",
    contract_version=lambda engine: built_of(engine).version,
    backends={"inflight": _BACKEND},
)
