"""How much of the KV cache a token takes.

A layer keeps a key and a value of each key-value head; MLA keeps one latent and one rotary key for
all heads. Layers with a sliding window keep no more tokens than the window has.
"""

from __future__ import annotations

from trtllm_serve_cli.sizing.shape import ModelShape

# TensorRT-LLM's default; a sequence takes whole blocks.
TOKENS_PER_BLOCK = 32


def count_values_per_layer(shape: ModelShape, tp: int = 1) -> int:
    """Numbers that one token leaves in one layer, on each of `tp` GPUs.

    Where there are more GPUs than key-value heads, each has one head whole; the latent of MLA is
    whole everywhere.
    """
    if shape.latent:
        return shape.latent.kv_lora_rank + shape.latent.qk_rope_head_dim
    return 2 * max(1, shape.num_key_value_heads // tp) * shape.head_dim


def kv_bytes_per_token(shape: ModelShape, bits: float) -> int:
    """Of the whole model, while no sliding window is full; exact for whole bytes per number."""
    return round(shape.num_layers * count_values_per_layer(shape) * bits / 8)


def kv_bytes_of_sequence(
    shape: ModelShape, num_tokens: int, bits: float, *, tp: int = 1, num_layers: int | None = None
) -> float:
    """Of one sequence, on each of `tp` GPUs that have `num_layers` of the layers.

    Layers with a sliding window are taken to be spread evenly over the stages, those without being
    the one more where they are not.
    """
    layers = shape.num_layers if num_layers is None else num_layers
    window = shape.window
    windowed = window.num_layers * layers // shape.num_layers if window else 0
    inside = min(num_tokens, window.num_tokens) if window else 0
    tokens = (layers - windowed) * _whole_blocks(num_tokens) + windowed * _whole_blocks(inside)
    return tokens * count_values_per_layer(shape, tp) * bits / 8


def _whole_blocks(num_tokens: int) -> int:
    return -(-num_tokens // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
