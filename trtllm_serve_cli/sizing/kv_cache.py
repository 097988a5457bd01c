"""Compute the KV cache size.

For each token, a layer caches a key and a value for each key-value head. MLA caches one latent and
one rotary key for all heads. Layers with a sliding window cache at most the tokens in the window.
"""

from __future__ import annotations

from trtllm_serve_cli.sizing.shape import ModelShape

# TensorRT-LLM's default number of tokens in a KV-cache block. Each sequence uses whole blocks.
TOKENS_PER_BLOCK = 32


def count_values_per_layer(shape: ModelShape, tp: int = 1) -> int:
    """Return the number of values that one layer caches per token on each of `tp` GPUs.

    If `tp` is larger than the number of key-value heads, each GPU caches one complete head. For MLA
    models, every GPU caches the complete latent.
    """
    if shape.latent:
        return shape.latent.kv_lora_rank + shape.latent.qk_rope_head_dim
    return 2 * max(1, shape.num_key_value_heads // tp) * shape.head_dim


def kv_bytes_per_token(shape: ModelShape, bits: float) -> int:
    """Return the KV cache bytes per token across all layers, before any sliding window is full.

    The result is rounded to whole bytes.
    """
    return round(shape.num_layers * count_values_per_layer(shape) * bits / 8)


def kv_bytes_of_sequence(
    shape: ModelShape, num_tokens: int, bits: float, *, tp: int = 1, num_layers: int | None = None
) -> float:
    """Return a sequence's KV cache size in bytes on each of `tp` GPUs.

    `num_layers` is the number of layers on the GPU, or None for all layers. Layers with a sliding
    window are assumed to be distributed evenly across the pipeline stages. The number of these
    layers on a GPU is rounded down. The GPU's remaining layers count as layers without a window.
    """
    layers = shape.num_layers if num_layers is None else num_layers
    window = shape.window
    windowed = window.num_layers * layers // shape.num_layers if window else 0
    inside = min(num_tokens, window.num_tokens) if window else 0
    tokens = (layers - windowed) * _whole_blocks(num_tokens) + windowed * _whole_blocks(inside)
    return tokens * count_values_per_layer(shape, tp) * bits / 8


def _whole_blocks(num_tokens: int) -> int:
    return -(-num_tokens // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
