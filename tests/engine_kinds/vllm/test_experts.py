"""Experts that vLLM divides among GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.vllm.experts import check_expert_blocks, complete_options
from trtllm_serve_cli.errors import BadInput

_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_QWEN = configs.QWEN_3_30B_A3B | {"quantization_config": _FP8}


def test_split_fp8_blocks_are_refused() -> None:
    with pytest.raises(BadInput) as raised:
        check_expert_blocks(_QWEN, EngineOptions(tp=4))
    assert str(raised.value) == (
        "vLLM cannot split the experts of this model across --tp 4 GPUs.\n"
        "Why: an expert has 768 columns, which cannot be divided by 4 into complete FP8 blocks of "
        "128\n"
        "Next: add --moe-ep 4 to give each GPU complete experts, or reduce --tp"
    )


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (_QWEN, {"tp": 2}),
        (_QWEN, {"tp": 4, "moe_ep": 4}),
        (configs.QWEN_3_30B_A3B, {"tp": 4}),
        (configs.DEEPSEEK_V3 | {"quantization_config": _FP8}, {"tp": 16}),
        (configs.LLAMA_3_1_8B | {"quantization_config": _FP8}, {"tp": 8}),
        (_QWEN | {"model_type": "unknown"}, {"tp": 4}),
        (_QWEN | {"quantization_config": {"weight_block_size": ["x"]}}, {"tp": 4}),
        (_QWEN | {"quantization_config": []}, {"tp": 4}),
    ],
)
def test_complete_fp8_blocks_are_accepted(config: dict[str, Any], options: dict[str, int]) -> None:
    check_expert_blocks(config, EngineOptions(**options))


@pytest.mark.parametrize(
    ("arguments", "options", "moe_ep"),
    [
        ('{"enable_expert_parallel": true}', {"tp": 8}, 8),
        ('{"enable_expert_parallel": true}', {}, None),
        ('{"enable_expert_parallel": true}', {"tp": 8, "moe_ep": 1}, 1),
        ('{"enable_expert_parallel": false}', {"tp": 8}, None),
        ("", {"tp": 8}, None),
        ("{", {"tp": 8}, None),
    ],
)
def test_parameters_enable_expert_parallelism(
    arguments: str, options: dict[str, int], moe_ep: int | None
) -> None:
    completed = complete_options(EngineOptions(**options), {"vllm_args": arguments})
    assert completed.moe_ep == moe_ep
