"""Count the parameters in each part of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtllm_serve_cli.sizing.shape import Experts, ModelShape


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The number of parameters in each part of a model.

    - `embedding`: includes learned position embeddings, and projections between `embedding_size`
      and `hidden_size`.
    - `experts`: includes routers and shared experts.
    - `head`: 0 if the LM head is tied to the embedding.
    - `active`: the total number of parameters, minus those of the experts that a token does not
      select.
    """

    embedding: int
    attention: int
    mlp: int
    experts: int
    norms: int
    head: int
    active: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.experts + self.norms + self.head


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """The number of attention parameters in one layer, grouped for tensor parallelism.

    - `by_heads`: the parameters that are split across GPUs by attention head.
    - `by_kv_heads`: the parameters that are split across GPUs by key-value head.
    - `replicated`: the parameters that every GPU stores, such as the projection to MLA's latent.
    """

    by_heads: int
    by_kv_heads: int
    replicated: int

    @property
    def total(self) -> int:
        return self.by_heads + self.by_kv_heads + self.replicated


def count_parameters(shape: ModelShape) -> ParameterCounts:
    """Count all parameters of the language model, including biases and norms."""
    experts = shape.experts
    expert_layers = experts.num_layers if experts else 0
    per_expert_layer = count_expert_layer(shape, experts) if experts else 0
    norms = shape.num_layers * count_layer_norms(shape) + count_last_norms(shape)
    idle = 0
    if experts:
        num_idle = experts.num_experts - experts.num_experts_per_token
        idle = expert_layers * num_idle * count_expert(shape, experts)
    counts = ParameterCounts(
        embedding=count_embedding(shape),
        attention=shape.num_layers * count_attention(shape).total,
        mlp=(shape.num_layers - expert_layers) * count_mlp(shape, shape.intermediate_size),
        experts=expert_layers * per_expert_layer,
        norms=norms,
        head=0 if shape.tie_word_embeddings else count_head(shape),
        active=0,
    )
    return replace(counts, active=counts.total - idle)


def count_embedding(shape: ModelShape) -> int:
    """Count the embedding parameters.

    The count includes learned positions, and projections between `embedding_size` and
    `hidden_size`.
    """
    words = shape.vocab_size * shape.embedding_size
    narrow = shape.embedding_size != shape.hidden_size
    projections = 2 * shape.embedding_size * shape.hidden_size if narrow else 0
    return words + projections + shape.extras.num_positions * shape.hidden_size


def count_head(shape: ModelShape) -> int:
    """Count the LM head parameters, even if the LM head is tied to the embedding."""
    bias = shape.vocab_size if shape.extras.head_bias else 0
    return shape.vocab_size * shape.embedding_size + bias


def count_attention(shape: ModelShape) -> AttentionParameters:
    """Count the attention parameters of one layer, with biases, query and key norms, and sinks."""
    hidden, heads, extras = shape.hidden_size, shape.num_attention_heads, shape.extras
    output_bias = hidden if extras.output_bias else 0
    if latent := shape.latent:
        qk_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        up = latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        output = heads * latent.v_head_dim * hidden
        down = hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim) + latent.kv_lora_rank
        if latent.q_lora_rank is None:
            query = hidden * heads * qk_dim
        else:
            query = latent.q_lora_rank * heads * qk_dim
            down += latent.q_lora_rank * (hidden + 1)
        return AttentionParameters(query + up + output, 0, down + output_bias)
    rows = hidden + 1 if extras.qkv_bias else hidden
    query_width = heads * shape.head_dim
    return AttentionParameters(
        by_heads=query_width * (rows + hidden),
        by_kv_heads=2 * shape.num_key_value_heads * shape.head_dim * rows,
        replicated=output_bias + extras.per_layer,
    )


def count_mlp(shape: ModelShape, intermediate_size: int) -> int:
    """Count the parameters of one MLP with the given intermediate size."""
    matrices = 3 if shape.is_gated else 2
    biases = (matrices - 1) * intermediate_size + shape.hidden_size
    return matrices * shape.hidden_size * intermediate_size + (
        biases if shape.extras.mlp_bias else 0
    )


def count_expert(shape: ModelShape, experts: Experts) -> int:
    """Count the parameters of one expert in one layer."""
    return count_mlp(shape, experts.intermediate_size)


def count_router(shape: ModelShape, experts: Experts) -> int:
    """Count the parameters of one layer's router, which is replicated on every GPU."""
    rows = shape.hidden_size + (1 if experts.has_router_bias else 0)
    return experts.num_experts * rows + (shape.hidden_size if experts.has_shared_gate else 0)


def count_shared_experts(shape: ModelShape, experts: Experts) -> int:
    """Count the parameters of one layer's shared experts, which process every token."""
    if not experts.shared_intermediate_size:
        return 0
    return count_mlp(shape, experts.shared_intermediate_size)


def count_expert_layer(shape: ModelShape, experts: Experts) -> int:
    """Count the parameters of one layer's experts, shared experts and router."""
    return (
        experts.num_experts * count_expert(shape, experts)
        + count_shared_experts(shape, experts)
        + count_router(shape, experts)
    )


def count_layer_norms(shape: ModelShape) -> int:
    """Count the parameters of one layer's norms."""
    return shape.extras.norms_per_layer * _count_norm(shape)


def count_last_norms(shape: ModelShape) -> int:
    """Count the parameters in norms outside the layers."""
    return shape.extras.norms_outside * _count_norm(shape)


def _count_norm(shape: ModelShape) -> int:
    return shape.hidden_size * (2 if shape.extras.norm_bias else 1)
