"""Parse a config.json into an architecture-independent model shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.families import FAMILIES, Config, Family
from trtllm_serve_cli.sizing.precision import read_quantization_word
from trtllm_serve_cli.sources.formats.json_file import CONTEXT_KEYS

# Maps each field to its possible config.json keys, which depend on the architecture.
_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "max_position_embeddings": CONTEXT_KEYS,
    "num_experts": ("num_local_experts", "n_routed_experts", "num_experts"),
}
# Upper limits for config.json values. Larger values are rejected, because no real model comes close
# to these limits.
_MAX_COUNT = 1 << 40
_MAX_LAYERS = 1 << 14


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts in a mixture-of-experts model.

    `num_layers` layers have experts, and the remaining layers have a dense MLP. `intermediate_size`
    is the intermediate size of one expert. `shared_intermediate_size` is the total intermediate
    size of the shared experts, which process every token.
    """

    num_experts: int
    num_experts_per_token: int
    num_layers: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    has_router_bias: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """The dimensions of multi-head latent attention (MLA).

    For each token, a layer caches `kv_lora_rank + qk_rope_head_dim` values.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A sliding window of `num_tokens` tokens that limits attention in `num_layers` layers."""

    num_tokens: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Extras:
    """The properties that determine a model's small parameters, such as biases and norms.

    `num_positions` is the number of learned position embeddings. `per_layer` is the number of other
    parameters in each layer, such as the norms of queries and keys.
    """

    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_bias: bool
    norm_bias: bool
    norms_per_layer: int
    norms_outside: int
    num_positions: int
    per_layer: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a language model.

    - `embedding_size`: differs from `hidden_size` only if the architecture projects between these
      sizes.
    - `intermediate_size`: the intermediate size of a dense MLP.
    - `head_dim`: the dimension of a query head.
    - `dtype`, `quantization`, `rope_type`: the names in the checkpoint. `rope_type` is the type of
      RoPE scaling.
    - `is_part`: true if the checkpoint may contain other parts, such as a vision tower.
    """

    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    embedding_size: int
    intermediate_size: int
    is_gated: bool
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    extras: Extras
    dtype: str | None = None
    quantization: str | None = None
    rope_type: str | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: SlidingWindow | None = None
    is_part: bool = False


def parse_shape(config: Mapping[str, Any]) -> ModelShape:
    """Parse a config.json. Raise `BadInput` if it is invalid or if the model is not supported."""
    text = find_text_config(config)
    model_type = text.get("model_type", config.get("model_type"))
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise BadInput(
            f"tllm cannot estimate the size of {model_type!r} models.",
            why=f"the supported types are {', '.join(FAMILIES)}",
            next_step="pass a model of a supported type",
        )
    family = FAMILIES[model_type]
    # Remove keys whose value is null, so that their defaults apply, as for missing keys.
    values = {key: value for key, value in text.items() if value is not None}
    try:
        return _parse(family, model_type, family.adapt({**family.defaults, **values}), config, text)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _broken(f"a value has the wrong type ({error})") from error


def find_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Parse a config.json. Return None if `FAMILIES` does not contain the model's family.

    Also return None if the nested config of a multimodal model is incomplete. For example,
    LLaVA 1.5 omits all sizes that are defaults of Transformers' config class. Raise `BadInput` if
    another config is invalid.
    """
    text = find_text_config(config)
    if str(text.get("model_type")) not in FAMILIES:
        return None
    try:
        return parse_shape(config)
    except BadInput:
        if text is config:
            raise
        return None


def find_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's config.

    In multimodal models, this config is nested under `text_config`. For multimodal models, the
    result includes the outer keys for the dtype, the quantization and the tied embedding, unless
    the nested config sets these keys.
    """
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config
    outer = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
    return {**{key: config[key] for key in outer if key in config}, **inner}


def _parse(
    family: Family, model_type: str, config: Config, whole: Mapping[str, Any], text: Config
) -> ModelShape:
    num_layers = _count(config, "num_layers")
    if num_layers > _MAX_LAYERS:
        raise _broken(f"the number of layers, {num_layers}, is too high")
    hidden_size = _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    kv_heads = _find_count(config, "num_key_value_heads") or heads
    latent = _parse_latent(config)
    head_dim = _find_head_dim(config, latent) or _divide(hidden_size, heads)
    if heads % kv_heads:
        raise _broken(
            f"the number of attention heads, {heads}, is not a multiple of the number of key-value "
            f"heads, {kv_heads}"
        )
    named = whole.get("architectures")
    return ModelShape(
        architecture=str(named[0]) if isinstance(named, list) and named else model_type,
        model_type=model_type,
        num_layers=num_layers,
        hidden_size=hidden_size,
        embedding_size=_find_count(config, "word_embed_proj_dim") or hidden_size,
        intermediate_size=_parse_intermediate_size(family, config, hidden_size),
        is_gated=family.is_gated,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_count(config, "vocab_size"),
        max_position_embeddings=_find_count(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        extras=_parse_extras(family, config, heads, kv_heads, head_dim),
        dtype=_parse_dtype(config),
        quantization=_parse_quantization(config),
        rope_type=_parse_rope_type(config),
        experts=_parse_experts(config, num_layers),
        latent=latent,
        window=_parse_window(family, config, num_layers),
        is_part=text is not whole,
    )


def _parse_intermediate_size(family: Family, config: Config, hidden_size: int) -> int:
    """Return the MLP's intermediate size.

    If config.json does not set the size, return 4 times the hidden size for an MLP without a gate,
    and raise `BadInput` for an MLP with a gate.
    """
    if size := _find_count(config, "intermediate_size"):
        return size
    if not family.is_gated:
        return 4 * hidden_size
    return _count(config, "intermediate_size")


def _parse_extras(
    family: Family, config: Config, heads: int, kv_heads: int, head_dim: int
) -> Extras:
    def is_there(bias: bool | str) -> bool:
        return bool(config.get(bias, False)) if isinstance(bias, str) else bias

    norms = 2 * head_dim if config.get("has_qk_norm") else 0
    norms += (heads + kv_heads) * head_dim if config.get("full_qk_norm") else 0
    sinks = heads if config.get("has_sinks") else 0
    positions = _find_count(config, "max_position_embeddings") or 0
    return Extras(
        qkv_bias=is_there(family.qkv_bias),
        output_bias=is_there(family.output_bias),
        mlp_bias=is_there(family.mlp_bias),
        head_bias=family.head_bias,
        norm_bias=family.norm_bias,
        norms_per_layer=config.get("norms_per_layer", family.norms_per_layer),
        norms_outside=config.get("norms_outside", family.norms_outside),
        num_positions=(
            config.get("num_positions", positions) if family.has_learned_positions else 0
        ),
        per_layer=norms + sinks,
    )


def _parse_experts(config: Config, num_layers: int) -> Experts | None:
    num_experts = _find_count(config, "num_experts")
    if not num_experts:
        return None
    size = config.get("moe_intermediate_size") or config.get("intermediate_size")
    shared = config.get("shared_expert_intermediate_size") or (
        config.get("n_shared_experts", 0) * (size or 0)
    )
    chosen = _check_count("num_experts_per_tok", config)
    if chosen > num_experts:
        raise _broken(
            f"the number of experts per token, {chosen}, exceeds the number of experts, "
            f"{num_experts}"
        )
    return Experts(
        num_experts=num_experts,
        num_experts_per_token=chosen,
        num_layers=_count_expert_layers(config, num_layers),
        intermediate_size=_check_count("moe_intermediate_size", {"moe_intermediate_size": size}),
        shared_intermediate_size=int(shared),
        has_shared_gate=bool(config.get("has_shared_gate")),
        has_router_bias=bool(config.get("has_sinks")),
    )


def _count_expert_layers(config: Config, num_layers: int) -> int:
    dense = {int(index) for index in config.get("mlp_only_layers", ())}
    first = int(config.get("first_k_dense_replace", 0))
    frequency = int(config.get("moe_layer_freq", 1)) or 1
    step = int(config.get("decoder_sparse_step", 1)) or 1
    return sum(
        index >= first and index not in dense and index % frequency == 0 and (index + 1) % step == 0
        for index in range(num_layers)
    )


def _find_head_dim(config: Config, latent: LatentAttention | None) -> int | None:
    if latent:
        return latent.qk_nope_head_dim + latent.qk_rope_head_dim
    return _find_count(config, "head_dim")


def _parse_latent(config: Config) -> LatentAttention | None:
    if "kv_lora_rank" not in config:
        return None
    return LatentAttention(
        kv_lora_rank=_check_count("kv_lora_rank", config),
        qk_rope_head_dim=_check_count("qk_rope_head_dim", config),
        qk_nope_head_dim=_check_count("qk_nope_head_dim", config),
        v_head_dim=_check_count("v_head_dim", config),
        q_lora_rank=_check_count("q_lora_rank", config) if config.get("q_lora_rank") else None,
    )


def _parse_window(family: Family, config: Config, num_layers: int) -> SlidingWindow | None:
    """Parse the sliding window, or return None if no layer uses one.

    `layer_types` marks the layers that use the window. Without `layer_types`, these layers start at
    `max_window_layers` or follow a fixed pattern.
    """
    size = config.get("sliding_window")
    if not size or not config.get("use_sliding_window", True):
        return None
    types = config.get("layer_types")
    if isinstance(types, list):
        count = types.count("sliding_attention")
    elif "max_window_layers" in config:
        count = max(0, num_layers - int(config["max_window_layers"]))
    else:
        period = int(config.get("sliding_window_pattern", family.window_period))
        count = num_layers - num_layers // period if period > 1 else num_layers
    return SlidingWindow(_check_count("sliding_window", config), count) if count else None


def _parse_dtype(config: Config) -> str | None:
    named = config.get("dtype") or config.get("torch_dtype")
    return str(named).removeprefix("torch.") if named else None


def _parse_quantization(config: Config) -> str | None:
    quantization_config = config.get("quantization_config")
    if not isinstance(quantization_config, Mapping):
        return None
    return read_quantization_word(quantization_config)


def _parse_rope_type(config: Config) -> str | None:
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    named = isinstance(rope, Mapping) and (rope.get("rope_type") or rope.get("type"))
    return str(named) if named else None


def _count(config: Config, what: str) -> int:
    for name in _NAMES[what]:
        if config.get(name) is not None:
            return _check_count(name, config)
    raise _broken(f"the {' or '.join(_NAMES[what])} key is missing")


def _find_count(config: Config, what: str) -> int | None:
    named = [name for name in _NAMES.get(what, (what,)) if config.get(name) is not None]
    return _check_count(named[0], config) if named else None


def _check_count(name: str, config: Config) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_COUNT:
        raise _broken(f"{name} must be a positive integer of at most 2^40, but is {value!r}")
    return value


def _divide(hidden_size: int, heads: int) -> int:
    if hidden_size % heads:
        raise _broken(
            f"the hidden size, {hidden_size}, is not divisible by the number of attention heads, "
            f"{heads}"
        )
    return hidden_size // heads


def _broken(why: str) -> BadInput:
    return BadInput(
        "The model's config.json is invalid.",
        why=why,
        next_step="compare the file with the publisher's config.json",
    )
