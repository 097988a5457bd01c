"""Arguments that a version of TensorRT-LLM does not have."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.engine_kinds.pytorch.argument_versions import check_arguments
from trtllm_serve_cli.errors import BadInput

OFF = {"kv_cache_config": {"onboard_blocks": False}}
PENALTY = {"speculative_config": {"enable_penalty": True}}


@pytest.mark.parametrize(
    ("arguments", "version", "what"),
    [
        (
            OFF,
            "1.3.0",
            "TensorRT-LLM 1.3.0 does not support the requested value of kv_cache_onboard_blocks.\n"
            "Why: the argument kv_cache_config.onboard_blocks was removed in 1.3.0rc25\n"
            "Next: omit kv_cache_onboard_blocks, or use an earlier TensorRT-LLM version",
        ),
        (
            PENALTY,
            "1.2.1",
            "TensorRT-LLM 1.2.1 does not support the requested value of "
            "speculative_config.enable_penalty.\n"
            "Why: the argument speculative_config.enable_penalty was added in 1.3.0rc26\n"
            "Next: omit speculative_config.enable_penalty, or use TensorRT-LLM 1.3.0rc26 or later",
        ),
    ],
)
def test_refuses_what_the_version_lacks(arguments: dict[str, Any], version: str, what: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_arguments(arguments, version)
    assert str(refused.value) == what


@pytest.mark.parametrize(
    ("arguments", "version"),
    [
        (OFF, "1.2.1"),
        (OFF, ""),
        ({"kv_cache_config": {"onboard_blocks": True}}, "1.3.0"),
        (PENALTY, "1.3.0"),
        ({"kv_cache_config": {"tokens_per_block": 64}}, "1.1.0rc2"),
        ({"kv_cache_config": None}, "1.3.0"),
    ],
)
def test_accepts_what_the_version_has(arguments: dict[str, Any], version: str) -> None:
    check_arguments(arguments, version)
