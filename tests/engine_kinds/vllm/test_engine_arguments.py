"""Options as vLLM's engine arguments."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.vllm.engine_arguments import plan_vllm_arguments
from trtllm_serve_cli.errors import BadInput

ONE_GPU = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}


@pytest.mark.parametrize(
    ("options", "more", "arguments"),
    [
        ({}, {}, {}),
        ({"tp": 4, "pp": 2}, {}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        ({"tp": 4, "moe_ep": 4}, {},
         {"tensor_parallel_size": 4, "enable_expert_parallel": True}),
        ({"dtype": "bfloat16", "max_batch_size": 8}, {}, {"dtype": "bfloat16"}),
        ({"quantization": "fp8"}, {}, {"quantization": "fp8"}),
        ({"quantization": "int4_awq"}, {"weights": "int4_awq"}, {}),
        ({"quantization": "none"}, {}, {}),
        ({"kv_cache_dtype": "fp8", "tokens_per_block": 32}, {},
         {"kv_cache_dtype": "fp8", "block_size": 32}),
        ({}, {"trust_remote_code": True}, {"trust_remote_code": True}),
        ({"max_lora_rank": 16, "lora_target_modules": ("attn_q",)}, {},
         {"enable_lora": True, "max_lora_rank": 16}),
    ],
)  # fmt: skip
def test_options_become_engine_arguments(
    options: dict[str, Any], more: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert plan_vllm_arguments(EngineOptions(**options), **more) == {**ONE_GPU, **arguments}


@pytest.mark.parametrize(
    ("options", "weights", "why"),
    [
        ({"quantization": "int8"}, None, "cannot serve this checkpoint with --quantization int8"),
        ({"quantization": "none"}, "fp8", "cannot serve this checkpoint with --quantization none"),
        ({"kv_cache_dtype": "int8"}, None, "does not support kv_cache_dtype int8"),
        ({"max_lora_rank": 48}, None, "does not support max_lora_rank 48"),
        ({"lora_dir": ("/a",)}, None, "does not support lora_dir"),
        ({"tp": 4, "moe_ep": 2}, None, "does not support --moe-ep 2 with --tp 4"),
        ({"max_draft_len": 3}, None, "does not support max_draft_len"),
        ({"max_beam_width": 4}, None, "does not support --max-beam-width"),
    ],
)
def test_rejects_unsupported_options(
    options: dict[str, Any], weights: str | None, why: str
) -> None:
    with pytest.raises(BadInput) as raised:
        plan_vllm_arguments(EngineOptions(**options), weights=weights)
    assert why in raised.value.what


def test_lora_dir_error_names_the_parameter_to_use() -> None:
    with pytest.raises(BadInput) as raised:
        plan_vllm_arguments(EngineOptions(lora_dir=("/a",)))
    assert raised.value.next_step == (
        "pass the adapter folder with --param lora_prefetch_dir=DIR, and set the maximum rank, "
        "for example --build-option max_lora_rank=16"
    )
