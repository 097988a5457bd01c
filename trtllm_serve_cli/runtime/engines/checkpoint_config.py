"""From a model's parameters to what the worker of an engine that serves a checkpoint gets."""

from __future__ import annotations

from typing import Any

from ..triton.parameters import Parameters
from .pytorch.arguments import LLM_ARGUMENTS, arguments_of
from .vllm.arguments import VLLM_ARGUMENTS


def pytorch_config(parameters: Parameters) -> dict[str, Any]:
    """What the worker of TensorRT-LLM's LLM API gets."""
    said = {name: parameters.text(name, "") for name in LLM_ARGUMENTS.parameters}
    return {"llm": arguments_of(said), **_beside(parameters)}


def vllm_config(parameters: Parameters) -> dict[str, Any]:
    """What the worker of vLLM gets."""
    said = {name: parameters.text(name, "") for name in VLLM_ARGUMENTS.parameters}
    return {"llm": VLLM_ARGUMENTS.read(said), **_beside(parameters)}


def _beside(parameters: Parameters) -> dict[str, Any]:
    """What is no argument of the engine's package."""
    config: dict[str, Any] = {
        "max_batch_size": parameters.number("max_num_seqs"),
        "max_queue_size": parameters.max_queue_size,
        "max_seq_len": parameters.number("max_seq_len"),
        "vocab_size": parameters.number("vocab_size"),
        "gpu_device_ids": parameters.gpus,
        "lora_prefetch_dir": parameters.text("lora_prefetch_dir", ""),
    }
    for name in ("lora_cache_max_adapter_size", "lora_cache_host_memory_bytes"):
        if parameters.text(name, ""):
            config[name] = parameters.number(name)
    return config
