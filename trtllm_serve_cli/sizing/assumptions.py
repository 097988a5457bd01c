"""Describe the assumptions of a plan in sentences."""

from __future__ import annotations

from trtllm_serve_cli.sizing.capacity import CONTEXT_BYTES, NCCL_BYTES, WORKSPACE_BYTES, Demand
from trtllm_serve_cli.sizing.kv_cache import TOKENS_PER_BLOCK
from trtllm_serve_cli.sizing.roofline import BANDWIDTH_REACHED, COMPUTE_REACHED
from trtllm_serve_cli.sizing.shape import ModelShape


def list_assumptions(shape: ModelShape, demand: Demand, num_gpus: int) -> tuple[str, ...]:
    """Return a sentence for each assumption that applies to this model."""
    nccl = f", {_gib(NCCL_BYTES)} for NCCL between GPUs" if num_gpus > 1 else ""
    assumptions = [
        f"On each GPU, driver and CUDA context use {_gib(CONTEXT_BYTES)} (measured on an H200), "
        f"workspaces {_gib(WORKSPACE_BYTES)}{nccl} (estimates).",
        f"Activations are those of {demand.max_num_tokens} tokens (max_num_tokens), logits those "
        f"of {demand.max_batch_size} sequences (max_batch_size); no more than that run together.",
        f"The KV cache gets {demand.kv_cache_free_gpu_mem_fraction:g} of the remaining memory "
        f"(kv_cache_free_gpu_mem_fraction), in blocks of {TOKENS_PER_BLOCK} tokens.",
    ]
    if window := shape.window:
        assumptions.append(
            f"{window.num_layers} of {shape.num_layers} layers cache only {window.num_tokens} "
            "tokens if the engine supports it (max_attention_window)."
        )
    if shape.latent:
        assumptions.append("Each GPU of a tensor-parallel group has the complete latent KV cache.")
    if shape.experts:
        assumptions.append("All experts are selected equally often.")
    if shape.is_part:
        assumptions.append(
            "Only the language model is counted; the checkpoint contains other parts, too."
        )
    assumptions.append(
        f"Speeds are upper limits: {BANDWIDTH_REACHED:.0%} of the card's bandwidth and "
        f"{COMPUTE_REACHED:.0%} of its dense rate, as measured on an H200, without communication "
        "between GPUs, sampling and gaps between steps. On that H200, vLLM 0.26 reached 67% of the "
        "limit for one stream and 64% of the saturated limit (Llama 2 7B, bfloat16)."
    )
    return tuple(assumptions)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
