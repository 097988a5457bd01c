"""Parameter counts, compared with published ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.sizing.parameters import ParameterCounts, count_parameters
from trtllm_serve_cli.sizing.shape import parse_shape


# Totals: the model cards' safetensors counts, or the papers' (GPT-2, OPT, BLOOM, GPT-J, MPT).
@pytest.mark.parametrize(
    ("config", "published"),
    [
        (configs.LLAMA_2_7B, 6.74e9),
        (configs.LLAMA_2_70B, 68.98e9),
        (configs.LLAMA_3_1_8B, 8.03e9),
        (configs.LLAMA_3_1_70B, 70.55e9),
        (configs.LLAMA_3_1_405B, 405.85e9),
        (configs.LLAMA_3_2_1B, 1.236e9),
        (configs.LLAMA_4_SCOUT, 107.8e9),
        (configs.LLAMA_4_MAVERICK, 400.7e9),
        (configs.MISTRAL_7B_V0_1, 7.24e9),
        (configs.MIXTRAL_8X7B, 46.7e9),
        (configs.MIXTRAL_8X22B, 140.6e9),
        (configs.DEEPSEEK_V3, 671e9),
        (configs.DEEPSEEK_V2_LITE, 15.7e9),
        (configs.QWEN_2_5_7B, 7.616e9),
        (configs.QWEN_1_5_MOE_A2_7B, 14.3e9),
        (configs.QWEN_3_0_6B, 0.596e9),
        (configs.QWEN_3_30B_A3B, 30.5e9),
        (configs.QWEN_3_235B_A22B, 235.1e9),
        (configs.GEMMA_2_9B, 9.24e9),
        (configs.GEMMA_3_4B, 3.88e9),
        (configs.GPT_2, 124.4e6),
        (configs.GPT_2_MEDIUM, 354.8e6),
        (configs.GPT_J_6B, 6.05e9),
        (configs.GPT_NEOX_20B, 20.55e9),
        (configs.OPT_125M, 125.2e6),
        (configs.OPT_350M, 331.2e6),
        (configs.BLOOM_7B1, 7.069e9),
        (configs.FALCON_7B, 6.92e9),
        (configs.FALCON_40B, 41.3e9),
        (configs.MPT_7B, 6.65e9),
        (configs.PHI_2, 2.78e9),
        (configs.PHI_3_MINI, 3.82e9),
        (configs.GPT_OSS_120B, 116.8e9),
        (configs.STARCODER_2_3B, 3.03e9),
        (configs.CHATGLM_3_6B, 6.24e9),
        (configs.BAICHUAN_2_7B, 7.51e9),
        (configs.INTERNLM_2_7B, 7.74e9),
    ],
)
def test_totals_match_published_counts(config: dict[str, Any], published: float) -> None:
    assert count_parameters(parse_shape(config)).total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (configs.MIXTRAL_8X7B, 12.9e9),
        (configs.MIXTRAL_8X22B, 39e9),
        (configs.QWEN_3_30B_A3B, 3.3e9),
        (configs.QWEN_3_235B_A22B, 22e9),
        (configs.DEEPSEEK_V3, 37e9),
        (configs.LLAMA_4_SCOUT, 17.2e9),
        (configs.LLAMA_4_MAVERICK, 17.2e9),
        (configs.LLAMA_2_7B, 6.74e9),
    ],
)
def test_active_parameters_match_published_counts(config: dict[str, Any], published: float) -> None:
    assert count_parameters(parse_shape(config)).active == pytest.approx(published, rel=0.02)


def test_counts_each_part_of_gpt_2() -> None:
    # GPT-2: 768 wide, 12 layers, an MLP four times as wide, biases and two numbers per norm.
    assert count_parameters(parse_shape(configs.GPT_2)) == ParameterCounts(
        embedding=50257 * 768 + 1024 * 768,
        attention=12 * (4 * 768 * 768 + 4 * 768),
        mlp=12 * (2 * 768 * 3072 + 3072 + 768),
        experts=0,
        norms=25 * 2 * 768,
        head=0,
        active=124_439_808,
    )


def test_counts_each_part_of_a_mixture_of_experts() -> None:
    # Mixtral 8x7B: 4096 wide, 32 layers, eight experts of three matrices, and a router.
    assert count_parameters(parse_shape(configs.MIXTRAL_8X7B)) == ParameterCounts(
        embedding=32000 * 4096,
        attention=32 * (2 * 4096 * 4096 + 2 * 4096 * 1024),
        mlp=0,
        experts=32 * (8 * 3 * 4096 * 14336 + 8 * 4096),
        norms=65 * 4096,
        head=32000 * 4096,
        active=12_879_925_248,
    )
