"""The function that upstream's Triton model imports (tensorrt_llm/llmapi/llm_args.py)."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.llmapi.llm_args import (
    DISCRIMINATED,
    RELEASE,
    DecodingBaseConfig,
    KvCacheConfig,
    LoraConfig,
)


def update_llm_args_with_extra_dict(
    llm_args: dict[str, Any], llm_args_dict: dict[str, Any], extra_llm_api_options: None = None
) -> dict[str, Any]:
    """Convert argument groups to their classes, and modify the arguments in place."""
    classes = {"lora_config": LoraConfig}
    if RELEASE >= DISCRIMINATED:
        classes["kv_cache_config"] = KvCacheConfig
    for name, cls in classes.items():
        if name in llm_args_dict:
            llm_args_dict[name] = cls(**llm_args_dict[name])
    if RELEASE < DISCRIMINATED and "speculative_config" in llm_args_dict:
        config = llm_args_dict["speculative_config"]
        llm_args_dict["speculative_config"] = DecodingBaseConfig.from_dict(config)
    return llm_args | llm_args_dict
