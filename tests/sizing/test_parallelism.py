"""Parallelism that a shape allows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.parallelism import (
    Parallelism,
    check_parallelism,
    find_tensor_parallelisms,
)
from trtllm_serve_cli.sizing.shape import parse_shape


@pytest.mark.parametrize(
    ("config", "numbers", "parallelism"),
    [
        (configs.LLAMA_2_70B, {"tp": 4, "pp": 2}, Parallelism(4, 2)),
        (configs.LLAMA_2_70B, {"tp": 16}, Parallelism(16)),
        (configs.FALCON_40B, {"tp": 4, "moe_tp": 1, "moe_ep": 1}, Parallelism(4)),
        (configs.MIXTRAL_8X22B, {"tp": 8}, Parallelism(8, 1, 8, 1)),
        (configs.MIXTRAL_8X22B, {"tp": 8, "moe_ep": 4}, Parallelism(8, 1, 2, 4)),
        (configs.MIXTRAL_8X22B, {"tp": 8, "moe_tp": 2}, Parallelism(8, 1, 2, 4)),
        (configs.MIXTRAL_8X22B, {"tp": 8, "moe_tp": 2, "moe_ep": 4}, Parallelism(8, 1, 2, 4)),
        (configs.DEEPSEEK_V3, {"tp": 16, "moe_ep": 16}, Parallelism(16, 1, 1, 16)),
    ],
)
def test_accepts_valid_parallelism(
    config: dict[str, Any], numbers: dict[str, int], parallelism: Parallelism
) -> None:
    assert check_parallelism(parse_shape(config), **numbers) == parallelism


@pytest.mark.parametrize(
    ("config", "numbers", "what", "why"),
    [
        (configs.LLAMA_2_7B, {"tp": 3}, "--tp 3",
         "the number of attention heads, 32, is not divisible by 3"),
        (configs.LLAMA_2_7B | {"num_key_value_heads": 4, "num_attention_heads": 24,
                               "hidden_size": 3072}, {"tp": 6}, "--tp 6",
         "the number of key-value heads, 4, is neither a multiple nor a divisor of 6"),
        (configs.LLAMA_2_7B | {"intermediate_size": 11009}, {"tp": 2}, "--tp 2",
         "the MLP width, 11009, is not divisible by 2"),
        (configs.LLAMA_2_7B, {"pp": 33}, "--pp 33",
         "the number of pipeline stages exceeds the number of layers, 32"),
        (configs.LLAMA_2_7B, {"pp": 0}, "--pp 0", "the number must be at least 1"),
        (configs.LLAMA_2_7B, {"tp": 2, "moe_ep": 2}, "--moe-tp 1 --moe-ep 2",
         "the model does not have experts"),
        (configs.MIXTRAL_8X7B, {"tp": 4, "moe_tp": 4, "moe_ep": 2}, "--moe-tp 4 --moe-ep 2",
         "the product of --moe-tp and --moe-ep must equal --tp (4)"),
        (configs.MIXTRAL_8X7B, {"tp": 4, "moe_ep": 8}, "--moe-ep 8",
         "the product of --moe-tp and --moe-ep must equal --tp (4)"),
        (configs.MIXTRAL_8X7B, {"tp": 16, "moe_ep": 16}, "--moe-ep 16",
         "the number of experts, 8, is not divisible by 16"),
        (configs.MIXTRAL_8X7B | {"intermediate_size": 14337}, {"tp": 2}, "--moe-tp 2",
         "the expert width, 14337, is not divisible by 2"),
    ],
)  # fmt: skip
def test_rejects_invalid_parallelism(
    config: dict[str, Any], numbers: dict[str, int], what: str, why: str
) -> None:
    with pytest.raises(BadInput) as caught:
        check_parallelism(parse_shape(config), **numbers)
    assert (caught.value.what, caught.value.why) == (f"The model cannot run with {what}.", why)


def test_next_step_lists_valid_values() -> None:
    with pytest.raises(BadInput) as caught:
        check_parallelism(parse_shape(configs.QWEN_2_5_7B), tp=8)
    assert caught.value.next_step == "set --tp to one of 1, 2, 4"


def test_lists_valid_tensor_parallelism() -> None:
    assert find_tensor_parallelisms(parse_shape(configs.LLAMA_2_70B), 64) == (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
    )
