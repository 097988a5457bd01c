"""Describe the assumptions behind a plan."""

from __future__ import annotations

from trtllm_serve_cli.sizing.capacity import CONTEXT_BYTES, NCCL_BYTES, WORKSPACE_BYTES, Demand
from trtllm_serve_cli.sizing.kv_cache import TOKENS_PER_BLOCK
from trtllm_serve_cli.sizing.roofline import BANDWIDTH_REACHED, COMPUTE_REACHED
from trtllm_serve_cli.sizing.shape import ModelShape


def list_assumptions(shape: ModelShape, demand: Demand, num_gpus: int) -> tuple[str, ...]:
    """Return a description of each assumption that applies to the model."""
    nccl = f", and NCCL uses {_gib(NCCL_BYTES)}" if num_gpus > 1 else ""
    assumptions = [
        f"On each GPU, the driver and the CUDA context use {_gib(CONTEXT_BYTES)} (measured on an "
        f"H200). Workspaces use {_gib(WORKSPACE_BYTES)}{nccl} (estimated).",
        f"A step processes up to {demand.max_num_tokens} tokens (max_num_tokens) and up to "
        f"{demand.max_batch_size} sequences (max_batch_size), which determine the memory for "
        "activations and logits.",
        f"The KV cache uses {100 * demand.kv_cache_free_gpu_mem_fraction:g}% of the remaining "
        f"memory (kv_cache_free_gpu_mem_fraction), in blocks of {TOKENS_PER_BLOCK} tokens.",
    ]
    if window := shape.window:
        assumptions.append(
            f"{window.num_layers} of {shape.num_layers} layers cache only {window.num_tokens} "
            "tokens, if the engine supports sliding windows (max_attention_window)."
        )
    if shape.latent:
        assumptions.append("Each GPU in a tensor-parallel group has the complete latent KV cache.")
    if shape.experts:
        assumptions.append("All experts are selected equally often.")
    if shape.is_part:
        assumptions.append(
            "Only the language model is counted, although the checkpoint may contain other parts."
        )
    assumptions.append(
        "Speeds are upper limits. They assume that the GPU sustains the same fractions of the data "
        f"sheet's rates as an H200: {BANDWIDTH_REACHED:.0%} of the bandwidth, and "
        f"{COMPUTE_REACHED['fp16']:.0%} (16-bit) or {COMPUTE_REACHED['fp8']:.0%} (FP8) of the "
        "dense compute rate. They do not account for communication between GPUs, sampling, or gaps "
        "between steps. On the same H200, vLLM 0.26 "
        "reached 67% of the limit for one stream and 73% of the saturated limit (Llama 2 7B, "
        "bfloat16)."
    )
    return tuple(assumptions)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
