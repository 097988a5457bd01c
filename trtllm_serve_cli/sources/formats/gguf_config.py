"""Convert a GGUF header to a config with config.json's keys.

ggml's docs/gguf.md specifies the keys in the header. Most keys have the form `ARCHITECTURE.key`.
"""

from __future__ import annotations

from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources.formats.gguf import GgufArray, GgufFacts

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "granite": "granite",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "sliding_window": "attention.sliding_window",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}


def config_of_gguf(facts: GgufFacts) -> dict[str, Any]:
    """Return a config for `parse_shape`. Raise `BadInput` if the architecture is not supported."""
    architecture = facts.architecture
    if architecture not in _MODEL_TYPES:
        raise BadInput(
            f"tllm cannot estimate the size of GGUF models with the {architecture!r} architecture.",
            why=f"the supported architectures are {', '.join(_MODEL_TYPES)}",
            next_step="pass the checkpoint that the file was converted from, for example "
            "-s hf:ORG/NAME",
        )
    found = {ours: facts.metadata.get(f"{architecture}.{key}") for ours, key in _KEYS.items()}
    tokens = facts.metadata.get("tokenizer.ggml.tokens")
    if found["vocab_size"] is None and isinstance(tokens, GgufArray):
        found["vocab_size"] = tokens.length
    return {
        **{key: value for key, value in found.items() if value is not None},
        "architectures": [architecture],
        "model_type": _MODEL_TYPES[architecture],
        "tie_word_embeddings": "output.weight" not in facts.tensor_names,
        "quantization_config": {"quant_method": "gguf"},
    }
