"""Shapes parsed from config.json, and errors in it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import configs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.families import FAMILIES
from trtllm_serve_cli.sizing.shape import (
    Experts,
    Extras,
    LatentAttention,
    ModelShape,
    SlidingWindow,
    parse_shape,
)


def test_parses_llama() -> None:
    assert parse_shape(configs.LLAMA_2_70B) == ModelShape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        num_layers=80,
        hidden_size=8192,
        embedding_size=8192,
        intermediate_size=28672,
        is_gated=True,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=32000,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        extras=Extras(False, False, False, False, False, 2, 1, 0, 0),
        dtype="float16",
    )


def test_parses_old_key_names() -> None:
    shape = parse_shape(configs.GPT_2_MEDIUM)
    assert (shape.num_layers, shape.hidden_size, shape.num_attention_heads) == (24, 1024, 16)
    assert (shape.intermediate_size, shape.head_dim, shape.num_key_value_heads) == (4096, 64, 16)
    assert (shape.tie_word_embeddings, shape.dtype) == (True, None)


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        (configs.MIXTRAL_8X22B, Experts(8, 2, 56, 16384)),
        (configs.DEEPSEEK_V3, Experts(256, 8, 58, 2048, 2048)),
        (configs.QWEN_1_5_MOE_A2_7B, Experts(60, 4, 24, 1408, 5632, has_shared_gate=True)),
        (configs.GPT_OSS_120B, Experts(128, 4, 36, 2880, has_router_bias=True)),
        (configs.LLAMA_2_7B, None),
    ],
)
def test_parses_experts(config: dict[str, Any], experts: Experts | None) -> None:
    assert parse_shape(config).experts == experts


def test_parses_latent_attention() -> None:
    assert parse_shape(configs.DEEPSEEK_V3).latent == LatentAttention(512, 64, 128, 128, 1536)
    assert parse_shape(configs.DEEPSEEK_V2_LITE).latent == LatentAttention(512, 64, 128, 128, None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (configs.MISTRAL_7B_V0_1, SlidingWindow(4096, 32)),
        (configs.MIXTRAL_8X7B, None),
        (configs.QWEN_2_5_7B, None),
        (configs.QWEN_2_5_7B | {"use_sliding_window": None, "max_window_layers": 20}, None),
        (configs.QWEN_2_5_7B | {"use_sliding_window": True, "max_window_layers": 20},
         SlidingWindow(131072, 8)),
        (configs.GEMMA_2_9B, SlidingWindow(4096, 21)),
        (configs.GEMMA_3_4B, SlidingWindow(1024, 29)),
        (configs.GPT_OSS_120B, SlidingWindow(128, 18)),
    ],
)  # fmt: skip
def test_parses_sliding_windows(config: dict[str, Any], window: SlidingWindow | None) -> None:
    assert parse_shape(config).window == window


def test_parses_the_text_part_of_a_multimodal_model() -> None:
    shape = parse_shape(configs.GEMMA_3_4B)
    assert (shape.architecture, shape.is_part) == ("Gemma3ForConditionalGeneration", True)
    assert (shape.hidden_size, shape.dtype) == (2560, "bfloat16")


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        (configs.FALCON_7B, 1),
        (configs.FALCON_40B, 8),
        (configs.MPT_7B, 32),
        (configs.CHATGLM_3_6B, 2),
    ],
)
def test_parses_family_specific_key_value_heads(config: dict[str, Any], kv_heads: int) -> None:
    assert parse_shape(config).num_key_value_heads == kv_heads


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"quant_method": "gptq"}, "gptq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq_8_bits"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({}, "unknown"),
    ],
)
def test_gptq_defaults_to_four_bits(config, word: str) -> None:
    shape = parse_shape({**configs.LLAMA_2_7B, "quantization_config": config})
    assert shape.quantization == word


def test_parses_quantization() -> None:
    assert parse_shape(configs.DEEPSEEK_V3).quantization == "fp8"
    modelopt = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    assert parse_shape(configs.LLAMA_2_7B | modelopt).quantization == "nvfp4"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": None}, "the hidden_size or n_embd or n_embed or d_model key is missing"),
        ({"hidden_size": "4096"},
         "hidden_size must be a positive integer of at most 2^40, but is '4096'"),
        ({"num_attention_heads": 0},
         "num_attention_heads must be a positive integer of at most 2^40, but is 0"),
        ({"vocab_size": 2**40 + 1},
         "vocab_size must be a positive integer of at most 2^40, but is 1099511627777"),
        ({"num_hidden_layers": 10**9}, "the number of layers, 1000000000, is too high"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5},
         "the number of experts per token, 5, exceeds the number of experts, 4"),
        ({"num_key_value_heads": 5}, "the number of attention heads, 32, is not a multiple of the "
         "number of key-value heads, 5"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33},
         "the hidden size, 4096, is not divisible by the number of attention heads, 33"),
    ],
)  # fmt: skip
def test_rejects_invalid_config(change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_shape(configs.LLAMA_2_7B | change)
    assert (caught.value.what, caught.value.why) == (
        "The model's config.json is invalid.",
        why,
    )


def test_accepts_the_largest_values() -> None:
    shape = parse_shape(configs.LLAMA_2_7B | {"vocab_size": 2**40, "num_hidden_layers": 2**14})
    assert (shape.vocab_size, shape.num_layers) == (2**40, 2**14)


def test_rejects_unknown_model_type() -> None:
    with pytest.raises(BadInput, match="estimate the size of 'mamba' models"):
        parse_shape({"model_type": "mamba"})


_KEYS = sorted({key for config in vars(configs).values() if isinstance(config, dict)
                for key in config} - {"model_type"})  # fmt: skip
_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)  # fmt: skip


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=5),
)
def test_random_values_raise_only_bad_input(model_type: str, change: dict[str, Any]) -> None:
    with contextlib.suppress(BadInput):
        parse_shape(configs.LLAMA_2_7B | change | {"model_type": model_type})
