"""Define architecture properties that are not in config.json.

The properties are from the model definitions in Hugging Face Transformers
(`models/*/modeling_*.py`) and from the defaults in `configuration_*.py`. For baichuan, chatglm,
exaone, deepseek, internlm, internlm2, jais, phi3small, qwen, RefinedWeb and skywork, the properties
are from the code that the publishers distribute with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]


def _unchanged(config: Config) -> Config:
    return config


@dataclass(frozen=True, slots=True)
class Family:
    """The properties of an architecture, with Llama's properties as defaults.

    A bias is True (present), False (absent), or the name of the config key that sets the bias.
    `defaults` contains default values from Transformers' config class, and tllm-specific keys for
    properties that are not in config.json, for example `has_sinks`. `adapt` converts a config to
    the keys and structure of a Llama config.

    `window_period` applies if a config has a sliding window but does not specify which layers use
    it. If `window_period` is 1, all layers use the window. If it is n > 1, every n-th layer does
    not use the window.
    """

    is_gated: bool = True
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool = False
    norms_per_layer: int = 2
    norms_outside: int = 1
    norm_bias: bool = False
    has_learned_positions: bool = False
    window_period: int = 1
    defaults: Config = field(default_factory=dict)
    adapt: Callable[[Config], Config] = _unchanged


def _adapt_mpt(config: Config) -> Config:
    attention = config.get("attn_config") or {}
    has_bias = not config.get("no_bias", True)
    heads = config.get("n_heads")
    kv_heads = 1 if attention.get("attn_type") == "multiquery_attention" else heads
    has_rotary = attention.get("alibi") or attention.get("rope")
    return {
        **config,
        "num_key_value_heads": attention.get("kv_n_heads") or kv_heads,
        "intermediate_size": config.get("d_model", 0) * config.get("expansion_ratio", 4),
        "has_bias": has_bias,
        "num_positions": 0 if has_rotary else config.get("max_seq_len"),
    }


def _adapt_falcon(config: Config) -> Config:
    new = config.get("new_decoder_architecture", False)
    multi_query = config.get("multi_query", True)
    heads = config.get("num_attention_heads", config.get("n_head"))
    kv_heads = config.get("num_kv_heads", config.get("n_head_kv")) if new else None
    one_norm = (config.get("parallel_attn", True) and not new) or (
        config.get("num_ln_in_parallel_attn") == 1
    )
    return {
        **config,
        "num_key_value_heads": kv_heads or (1 if multi_query and not new else heads),
        "intermediate_size": config.get("ffn_hidden_size"),
        "norms_per_layer": 1 if one_norm else 2,
    }


def _adapt_refined_web(config: Config) -> Config:
    """Convert a RefinedWeb config to Falcon's format.

    Of the two RefinedWeb model types, only RefinedWeb (Falcon-40B) uses grouped-query attention.
    """
    is_new = config.get("model_type") == "RefinedWeb"
    return _adapt_falcon({**config, "new_decoder_architecture": is_new})


def _adapt_qwen(config: Config) -> Config:
    """Halve the intermediate size.

    In Qwen's config, this size is the total width of both projections in the gated MLP.
    """
    return {**config, "intermediate_size": config.get("intermediate_size", 0) // 2}


def _adapt_dbrx(config: Config) -> Config:
    attention, mlp = config.get("attn_config") or {}, config.get("ffn_config") or {}
    return {
        **config,
        "num_key_value_heads": attention.get("kv_n_heads"),
        "intermediate_size": mlp.get("ffn_hidden_size"),
        "num_experts": mlp.get("moe_num_experts"),
        "num_experts_per_tok": mlp.get("moe_top_k"),
    }


def _adapt_phi3_small(config: Config) -> Config:
    return {**config, "intermediate_size": config.get("ff_intermediate_size")}


def _adapt_gpt_bigcode(config: Config) -> Config:
    return {**config, "num_key_value_heads": 1 if config.get("multi_query", True) else None}


def _adapt_chatglm(config: Config) -> Config:
    groups = config.get("multi_query_group_num")
    return {
        **config,
        "num_key_value_heads": groups if config.get("multi_query_attention") else None,
        "has_qkv_bias": config.get("add_qkv_bias") or config.get("add_bias_linear"),
    }


def _adapt_llama_4(config: Config) -> Config:
    """Rename the sizes of the MLPs and the layers with experts.

    Layers with experts also have a shared expert. `intermediate_size` is the size of each expert.
    """
    expert_size = config.get("intermediate_size")
    return {
        **config,
        "intermediate_size": config.get("intermediate_size_mlp"),
        "moe_intermediate_size": expert_size,
        "shared_expert_intermediate_size": expert_size,
        "decoder_sparse_step": config.get("interleave_moe_layer_step"),
    }


def _adapt_opt(config: Config) -> Config:
    """Add OPT's two extra position embeddings, and omit the last norm in post-norm models."""
    return {
        **config,
        "num_positions": config.get("max_position_embeddings", 0) + 2,
        "norms_outside": 1 if config.get("do_layer_norm_before", True) else 0,
    }


def _adapt_cohere(config: Config) -> Config:
    return {**config, "full_qk_norm": config.get("use_qk_norm", False)}


_GPT: Any = {"is_gated": False, "norm_bias": True}
_ALL_BIASES: Any = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
_TIED: Config = {"tie_word_embeddings": True}
# A `sliding_window` in config.json has no effect unless `use_sliding_window` is set.
_NO_WINDOW: Config = {"use_sliding_window": False}
_LLAMA = Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_GEMMA_3 = Family(
    norms_per_layer=4,
    window_period=6,
    # Repeat the config class's defaults, because published config.json files omit default values.
    defaults={
        **_TIED,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "has_qk_norm": True,
    },
)
_DEEPSEEK = Family(
    defaults={"first_k_dense_replace": 0, "moe_layer_freq": 1, "n_shared_experts": 0},
    output_bias="attention_bias",
)

_REFINED_WEB = Family(
    **_GPT, qkv_bias="bias", output_bias="bias", mlp_bias="bias",
    defaults=_TIED, adapt=_adapt_refined_web,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "RefinedWeb": _REFINED_WEB,
    "RefinedWebModel": _REFINED_WEB,
    "baichuan": Family(),
    "bloom": Family(
        **_GPT, **_ALL_BIASES, norms_outside=2, defaults=_TIED,
    ),
    "chatglm": Family(
        qkv_bias="has_qkv_bias",
        output_bias="add_bias_linear",
        mlp_bias="add_bias_linear",
        adapt=_adapt_chatglm,
    ),
    "cohere": Family(norms_per_layer=1, defaults=_TIED, adapt=_adapt_cohere),
    "cohere2": Family(
        norms_per_layer=1, window_period=4, defaults={**_TIED, "sliding_window": 4096}
    ),
    "dbrx": Family(adapt=_adapt_dbrx),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "exaone": Family(),
    "falcon": Family(
        **_GPT, qkv_bias="bias", output_bias="bias", mlp_bias="bias",
        defaults=_TIED, adapt=_adapt_falcon,
    ),
    "gemma": Family(defaults={**_TIED, "head_dim": 256}),
    "gemma2": Family(
        norms_per_layer=4, window_period=2,
        defaults={**_TIED, "head_dim": 256, "sliding_window": 4096},
    ),
    "gemma3_text": _GEMMA_3,
    "gpt2": Family(**_GPT, **_ALL_BIASES, has_learned_positions=True, defaults=_TIED),
    "gpt_bigcode": Family(
        **_GPT, **_ALL_BIASES, has_learned_positions=True, defaults=_TIED,
        adapt=_adapt_gpt_bigcode,
    ),
    "gpt_neox": Family(
        **_GPT, qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias=True,
        defaults={"attention_bias": True},
    ),
    "gpt_oss": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias=True,
        window_period=2,
        defaults={"attention_bias": True, "has_sinks": True, "sliding_window": 128},
    ),
    "gptj": Family(**_GPT, mlp_bias=True, head_bias=True, norms_per_layer=1),
    "granite": _LLAMA,
    "internlm": Family(qkv_bias="bias", output_bias="bias", defaults={"bias": True}),
    "internlm2": Family(qkv_bias="bias", output_bias="bias"),
    "jais": Family(**_ALL_BIASES, norm_bias=True, defaults=_TIED),
    "llama": _LLAMA,
    "llama4_text": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", adapt=_adapt_llama_4,
    ),
    "mistral": Family(),
    "mixtral": Family(),
    "mpt": Family(
        is_gated=False, qkv_bias="has_bias", output_bias="has_bias", mlp_bias="has_bias",
        has_learned_positions=True, defaults=_TIED, adapt=_adapt_mpt,
    ),
    "nemotron": Family(**_GPT, qkv_bias="attention_bias", output_bias="attention_bias"),
    "olmo2": Family(defaults={"full_qk_norm": True}),
    "opt": Family(
        **_GPT, qkv_bias="enable_bias", output_bias="enable_bias", mlp_bias="enable_bias",
        has_learned_positions=True, defaults={**_TIED, "enable_bias": True}, adapt=_adapt_opt,
    ),
    "phi": Family(**_GPT, **_ALL_BIASES, head_bias=True, norms_per_layer=1),
    "phi3": Family(),
    "phi3small": Family(**_ALL_BIASES, norm_bias=True, adapt=_adapt_phi3_small),
    "phimoe": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", head_bias=True, norm_bias=True,
    ),
    "qwen": Family(qkv_bias=True, adapt=_adapt_qwen),
    "qwen2": Family(qkv_bias=True, defaults=_NO_WINDOW),
    "qwen2_moe": Family(qkv_bias=True, defaults={**_NO_WINDOW, "has_shared_gate": True}),
    "qwen3": Family(
        qkv_bias="attention_bias", output_bias="attention_bias",
        defaults={**_NO_WINDOW, "has_qk_norm": True},
    ),
    "qwen3_moe": Family(
        qkv_bias="attention_bias", output_bias="attention_bias",
        defaults={**_NO_WINDOW, "has_qk_norm": True, "decoder_sparse_step": 1},
    ),
    "skywork": Family(),
    "smollm3": Family(
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
        defaults={**_TIED, **_NO_WINDOW},
    ),
    "starcoder2": Family(
        **_GPT, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias",
        defaults={**_TIED, "use_bias": True},
    ),
}  # fmt: skip
