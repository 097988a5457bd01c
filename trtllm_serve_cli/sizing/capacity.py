"""Estimate the memory that a model uses on a GPU and the number of sequences that fit."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.kv_cache import kv_bytes_of_sequence
from trtllm_serve_cli.sizing.parallelism import Parallelism
from trtllm_serve_cli.sizing.precision import Format
from trtllm_serve_cli.sizing.shape import ModelShape
from trtllm_serve_cli.sizing.stages import Stage, split_stages

_MIB = 1 << 20
# Memory used by the driver and a CUDA context, measured on an H200 with driver 580 and CUDA 13. The
# driver used 616 MiB. A PyTorch process that had run matrix multiplication and attention used 693
# MiB for its CUDA context and kernels.
CONTEXT_BYTES = (616 + 693) * _MIB
# Estimated memory that an engine's kernels and runtime allocate in addition to the CUDA context.
WORKSPACE_BYTES = 512 * _MIB
# Estimated size of the buffers that NCCL allocates on each GPU if a model uses several GPUs.
NCCL_BYTES = 512 * _MIB
_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4


# TensorRT-LLM's default limits.
MAX_BATCH_SIZE, MAX_NUM_TOKENS = 2048, 8192


@dataclass(frozen=True, slots=True)
class Demand:
    """The formats, lengths and limits that a plan must support.

    Lengths are in tokens. The limits have TensorRT-LLM's names and defaults.

    - `weights`: the format for the large matrices.
    - `others`: the format for all other parameters.
    - `kv`: the format for the KV cache.
    - `scale`: the factor that adjusts the computed weight size to match the size on disk.
    """

    weights: Format
    others: Format
    kv: Format
    input_len: int
    output_len: int
    max_seq_len: int
    max_batch_size: int = MAX_BATCH_SIZE
    max_num_tokens: int = MAX_NUM_TOKENS
    kv_cache_free_gpu_mem_fraction: float = 0.9
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory use of one GPU, in bytes.

    If the model has several pipeline stages, the values are for the stage with room for the fewest
    sequences.

    - `activations`: includes the workspaces.
    - `context`: includes NCCL's buffers.
    - `kv_cache`: 0 if the other parts use all memory.
    - `num_sequences`: the number of sequences of `input_len` plus `output_len` tokens that fit into
      the KV cache.
    - `fits`: true if one sequence of `max_seq_len` tokens fits into the KV cache.
    """

    total: int
    weights: int
    activations: int
    context: int
    kv_cache: int
    num_sequences: int
    fits: bool


def plan_memory(shape: ModelShape, parallelism: Parallelism, gpu: Gpu, demand: Demand) -> Memory:
    """Return the memory use of one GPU in the stage that has room for the fewest sequences."""
    stages = split_stages(shape, parallelism)
    plans = [_plan_stage(shape, parallelism, stage, gpu, demand) for stage in stages]
    return min(plans, key=lambda plan: (plan.fits, plan.num_sequences, plan.kv_cache))


def weight_bytes(stage: Stage, demand: Demand) -> float:
    """Return the size in bytes of the weights on each GPU in a stage."""
    large = (stage.matrices + stage.experts) * demand.weights.bits
    rest = (stage.replicated + stage.embedding + stage.head) * demand.others.bits
    return demand.scale * (large + rest) / 8


def activation_bytes(shape: ModelShape, parallelism: Parallelism, demand: Demand) -> int:
    """Return the size of the logits and activations on each GPU for `max_num_tokens`, in bytes.

    The estimate for activations is two copies of the residual stream, plus the attention tensors or
    the MLP tensors, whichever are larger. The attention tensors are queries, keys, values and an
    output. The MLP tensors are the gate, the up projection and their product. An MLP without a gate
    has two tensors. In a mixture of experts, each selected expert has these tensors and an output.
    On an H200, Llama layers in PyTorch used 90% to 92% of this estimate. Logits are in single
    precision, with one row for each sequence in the batch.
    """
    tp, heads = parallelism.tp, shape.num_attention_heads
    attention = 2 * (heads + max(tp, shape.num_key_value_heads)) * shape.head_dim / tp
    inside = 3 if shape.is_gated else 2
    mlp = inside * shape.intermediate_size / tp
    if experts := shape.experts:
        width = experts.intermediate_size / parallelism.moe_tp
        routed = experts.num_experts_per_token * (inside * width + shape.hidden_size)
        mlp = max(mlp, routed + inside * experts.shared_intermediate_size / tp)
    per_token = 2 * shape.hidden_size + max(attention, mlp)
    tokens = demand.max_num_tokens * per_token * _ACTIVATION_BYTES
    logits = min(demand.max_batch_size, demand.max_num_tokens) * shape.vocab_size * _LOGIT_BYTES
    return round(tokens + logits / tp)


def _plan_stage(
    shape: ModelShape, parallelism: Parallelism, stage: Stage, gpu: Gpu, demand: Demand
) -> Memory:
    tp = parallelism.tp
    weights = round(weight_bytes(stage, demand))
    activations = activation_bytes(shape, parallelism, demand) + WORKSPACE_BYTES
    context = CONTEXT_BYTES + (NCCL_BYTES if parallelism.world_size > 1 else 0)
    free = max(0, gpu.memory_bytes - weights - activations - context)
    kv_cache = int(free * demand.kv_cache_free_gpu_mem_fraction)

    def sequence_bytes(num_tokens: int) -> float:
        return kv_bytes_of_sequence(
            shape, num_tokens, demand.kv.bits, tp=tp, num_layers=stage.num_layers
        )

    return Memory(
        total=gpu.memory_bytes,
        weights=weights,
        activations=activations,
        context=context,
        kv_cache=kv_cache,
        num_sequences=int(kv_cache // sequence_bytes(demand.input_len + demand.output_len)),
        fits=kv_cache >= sequence_bytes(demand.max_seq_len),
    )
