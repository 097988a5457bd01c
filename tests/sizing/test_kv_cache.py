"""Bytes of the KV cache, compared with constants computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.sizing.kv_cache import (
    count_values_per_layer,
    kv_bytes_of_sequence,
    kv_bytes_per_token,
)
from trtllm_serve_cli.sizing.shape import parse_shape


@pytest.mark.parametrize(
    ("config", "bits", "num_bytes"),
    [
        # Key and value, layers, key-value heads, their size, bytes of a number.
        (configs.LLAMA_2_7B, 16, 2 * 32 * 32 * 128 * 2),
        (configs.LLAMA_2_7B, 16, 524_288),
        (configs.LLAMA_2_70B, 16, 327_680),
        (configs.LLAMA_2_70B, 8, 163_840),
        (configs.LLAMA_3_1_8B, 16, 131_072),
        (configs.LLAMA_3_1_405B, 16, 516_096),
        (configs.MIXTRAL_8X7B, 16, 131_072),
        (configs.MIXTRAL_8X22B, 16, 229_376),
        # Layers, the latent and the rotary key, bytes of a number.
        (configs.DEEPSEEK_V3, 16, 61 * (512 + 64) * 2),
        (configs.DEEPSEEK_V3, 8, 35_136),
        (configs.QWEN_3_30B_A3B, 16, 98_304),
        (configs.QWEN_3_235B_A22B, 16, 192_512),
        (configs.GEMMA_2_9B, 16, 344_064),
        (configs.GEMMA_3_4B, 16, 139_264),
        (configs.GPT_2, 16, 36_864),
        (configs.FALCON_7B, 16, 8_192),
        (configs.FALCON_40B, 16, 122_880),
        (configs.CHATGLM_3_6B, 16, 28_672),
        (configs.LLAMA_3_1_8B, 4.5, 36_864),
    ],
)
def test_bytes_per_token_are_exact(config: dict[str, Any], bits: float, num_bytes: int) -> None:
    assert kv_bytes_per_token(parse_shape(config), bits) == num_bytes


@pytest.mark.parametrize(
    ("config", "tp", "values"),
    [
        (configs.LLAMA_2_70B, 8, 2 * 128),
        (configs.LLAMA_2_70B, 16, 2 * 128),
        (configs.LLAMA_2_70B, 4, 4 * 128),
        (configs.DEEPSEEK_V3, 8, 576),
    ],
)
def test_values_per_layer_on_each_gpu(config: dict[str, Any], tp: int, values: int) -> None:
    assert count_values_per_layer(parse_shape(config), tp) == values


def test_sequence_uses_whole_blocks() -> None:
    shape = parse_shape(configs.LLAMA_3_1_8B)
    assert kv_bytes_of_sequence(shape, 33, 16) == 64 * 131_072


def test_sliding_window_limits_the_kv_cache() -> None:
    # 18 layers keep all 1280 tokens, 18 the last 128; each 2 x 8 heads of 64 numbers of 2 bytes.
    shape = parse_shape(configs.GPT_OSS_120B)
    assert kv_bytes_of_sequence(shape, 1280, 16) == (18 * 1280 + 18 * 128) * 2048
    assert kv_bytes_of_sequence(shape, 64, 16) == 36 * 64 * 2048


def test_stage_caches_only_its_layers() -> None:
    shape = parse_shape(configs.LLAMA_3_1_8B)
    assert kv_bytes_of_sequence(shape, 32, 16, tp=4, num_layers=8) == 32 * 8 * 2 * 2 * 128 * 2
