"""Distribute a model's parameters across GPUs.

The layers are divided among pipeline stages. If the layers cannot be divided evenly, the first
stages each get one additional layer. Tensor parallelism divides attention heads, MLPs, experts and
the LM head. Norms and routers are replicated on every GPU in a stage. The embedding is also
replicated, which is the default in TensorRT-LLM.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.sizing import parameters
from trtllm_serve_cli.sizing.parallelism import Parallelism
from trtllm_serve_cli.sizing.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Stage:
    """The number of parameters on one GPU in a pipeline stage.

    - `matrices`: the parameters in matrices that every token uses.
    - `experts`: the parameters of all experts, although each token uses only some of them.
    - `replicated`: the norm and router parameters, which are not quantized.
    - `embedding`: the embedding parameters, which are not quantized. 0 except in the first stage.
    - `head`: the LM head parameters, which are not quantized. 0 except in the last stage, and 0 if
      the LM head is tied to an embedding on the same GPU.
    - `head_read`: the parameters that are read to compute logits.
    """

    num_layers: int
    matrices: float
    experts: float
    replicated: float
    embedding: float
    head: float
    head_read: float


def split_stages(shape: ModelShape, parallelism: Parallelism) -> tuple[Stage, ...]:
    """Return the number of parameters on each GPU of each pipeline stage."""
    pp = parallelism.pp
    even, more = divmod(shape.num_layers, pp)
    sizes = [even + (1 if index < more else 0) for index in range(pp)]
    starts = [sum(sizes[:index]) for index in range(pp)]
    return tuple(
        _describe(shape, parallelism, start, size, is_first=start == 0, is_last=index == pp - 1)
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def _describe(
    shape: ModelShape,
    parallelism: Parallelism,
    start: int,
    num_layers: int,
    *,
    is_first: bool,
    is_last: bool,
) -> Stage:
    tp, experts = parallelism.tp, shape.experts
    # If only some layers have experts, assume that the dense layers come first.
    num_dense = shape.num_layers - (experts.num_layers if experts else 0)
    dense = max(0, min(num_dense, start + num_layers) - start)
    sparse = num_layers - dense
    matrices = num_layers * _attention_share(shape, tp)
    matrices += dense * parameters.count_mlp(shape, shape.intermediate_size) / tp
    replicated = float(num_layers * parameters.count_layer_norms(shape))
    routed = 0.0
    if experts and sparse:
        matrices += sparse * parameters.count_shared_experts(shape, experts) / tp
        replicated += sparse * parameters.count_router(shape, experts)
        each = parameters.count_expert(shape, experts) / parallelism.moe_tp
        routed = sparse * each * experts.num_experts / parallelism.moe_ep
    replicated += parameters.count_last_norms(shape) if is_last else 0
    head = parameters.count_head(shape) / tp if is_last else 0.0
    return Stage(
        num_layers=num_layers,
        matrices=matrices,
        experts=routed,
        replicated=replicated,
        embedding=parameters.count_embedding(shape) if is_first else 0.0,
        head=0.0 if shape.tie_word_embeddings and is_first else head,
        head_read=head,
    )


def _attention_share(shape: ModelShape, tp: int) -> float:
    attention = parameters.count_attention(shape)
    kv_copies = min(tp, shape.num_key_value_heads)
    return attention.by_heads / tp + attention.by_kv_heads / kv_copies + attention.replicated
