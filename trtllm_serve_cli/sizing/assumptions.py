"""What a plan takes for granted, in sentences for its reader."""

from __future__ import annotations

from trtllm_serve_cli.sizing.capacity import CONTEXT_BYTES, NCCL_BYTES, WORKSPACE_BYTES, Demand
from trtllm_serve_cli.sizing.kv_cache import TOKENS_PER_BLOCK
from trtllm_serve_cli.sizing.roofline import BANDWIDTH_REACHED, COMPUTE_REACHED
from trtllm_serve_cli.sizing.shape import ModelShape


def list_assumptions(shape: ModelShape, demand: Demand, num_gpus: int) -> tuple[str, ...]:
    """Those that bear on this model."""
    nccl = f", {_gib(NCCL_BYTES)} for NCCL between GPUs" if num_gpus > 1 else ""
    assumptions = [
        f"Of each GPU's memory, driver and CUDA context take {_gib(CONTEXT_BYTES)} (seen on an "
        f"H200), workspaces {_gib(WORKSPACE_BYTES)}{nccl} (guesses).",
        f"Activations are of {demand.max_num_tokens} tokens at once (max_num_tokens), logits of "
        f"{demand.max_batch_size} sequences (max_batch_size); no more than that run at once.",
        f"The KV cache gets {demand.kv_cache_free_gpu_mem_fraction:g} of what is left "
        f"(kv_cache_free_gpu_mem_fraction), in blocks of {TOKENS_PER_BLOCK} tokens.",
    ]
    if window := shape.window:
        assumptions.append(
            f"{window.num_layers} of {shape.num_layers} layers keep {window.num_tokens} tokens "
            "only, if the engine knows it (max_attention_window)."
        )
    if shape.latent:
        assumptions.append("The latent KV cache is whole on each GPU of a tensor-parallel group.")
    if shape.experts:
        assumptions.append("Every expert is chosen equally often.")
    if shape.is_part:
        assumptions.append("Only the language model is counted; the checkpoint holds more.")
    assumptions.append(
        f"Speeds are ceilings: {BANDWIDTH_REACHED:.0%} of the card's bandwidth and "
        f"{COMPUTE_REACHED:.0%} of its dense rate, as reached on an H200; nothing for what GPUs "
        "say to each other, for sampling or for gaps between steps. There, vLLM 0.26 came to 67% "
        "of the ceiling for one stream and 64% of the saturated one (Llama 2 7B, bfloat16)."
    )
    return tuple(assumptions)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
