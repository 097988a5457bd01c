"""Convert `tensorrt_llm` model parameters to an engine worker configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..triton.parameters import Parameters


def scheduler_config(parameters: Parameters) -> dict[str, Any]:
    """Return the configuration values that `openvino` and `sim` workers share.

    Both engine kinds add more values. Workers that compute embeddings use `embedding_config`
    instead.
    """
    return {
        "engine_dir": parameters.text("gpt_model_path"),
        "max_batch_size": parameters.number("max_num_seqs", at_least=1),
        "max_queue_size": parameters.max_queue_size,
        "max_seq_len": parameters.number("max_seq_len", at_least=1),
        "max_num_tokens": parameters.number("max_num_tokens", at_least=1),
        "max_tokens_in_paged_kv_cache": parameters.number("max_tokens_in_paged_kv_cache"),
        "enable_kv_cache_reuse": parameters.flag("enable_kv_cache_reuse", True),
        "vocab_size": parameters.number("vocab_size"),
    }


def llm_config(arguments: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return the configuration for a worker that serves a checkpoint with an engine package.

    The worker passes `llm`, a copy of `arguments`, to the engine package. All other values
    configure the worker itself.
    """
    config: dict[str, Any] = {
        "llm": dict(arguments),
        "max_batch_size": parameters.number("max_num_seqs", at_least=1),
        "max_queue_size": parameters.max_queue_size,
        "max_seq_len": parameters.number("max_seq_len", at_least=1),
        "vocab_size": parameters.number("vocab_size"),
        "gpu_device_ids": parameters.gpus,
        "lora_prefetch_dir": parameters.text("lora_prefetch_dir", ""),
    }
    for name in ("lora_cache_max_adapter_size", "lora_cache_host_memory_bytes"):
        if parameters.text(name, ""):
            config[name] = parameters.number(name)
    return config


def embedding_config(parameters: Parameters) -> dict[str, Any]:
    """Return the configuration for a worker that computes embeddings.

    In the configuration, `embedding` contains the fields of `EmbeddingSettings`, and `llm` contains
    additional arguments for the engine kind's package.
    """
    return {
        "embedding": json.loads(parameters.text("embedding")),
        "engine_dir": parameters.text("gpt_model_path"),
        "max_batch_size": parameters.number("max_num_seqs", at_least=1),
        "max_queue_size": parameters.max_queue_size,
        "max_seq_len": parameters.number("max_seq_len", at_least=1),
        "max_num_tokens": parameters.number("max_num_tokens", at_least=1),
        "vocab_size": parameters.number("vocab_size"),
        "num_threads": parameters.number("num_threads", 0),
        "gpu_device_ids": parameters.gpus,
        "gpu_memory_fraction": parameters.text("kv_cache_free_gpu_mem_fraction", ""),
        "llm": json.loads(parameters.text("llm_arguments", "{}")),
    }
