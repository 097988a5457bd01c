"""Tests of the options that `tllm infer` accepts for embedding models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from trtllm_serve_cli.cli.infer.embedding import check_usage
from trtllm_serve_cli.cli.infer.infer_options import InferOptions


@pytest.mark.parametrize(
    ("options", "request_values", "flag"),
    [
        ({}, {"return_log_probs": True}, "--logprobs"),
        ({}, {"stop_words": ("x",)}, "--stop"),
        ({}, {"max_tokens": 5}, "--max-tokens"),
        ({"chat": False}, {}, "--chat/--raw"),
        ({"lora_dir": Path("x")}, {}, "--lora-dir"),
    ],
)
def test_option_for_generated_text_is_refused_by_its_flag(
    options: dict[str, Any], request_values: dict[str, Any], flag: str
) -> None:
    with pytest.raises(typer.BadParameter, match="applies only to models that") as refused:
        check_usage("go", InferOptions(**options), request_values)
    assert refused.value.param_hint == flag


def test_options_for_the_server_are_accepted() -> None:
    options = InferOptions(url="grpcs://h:1", tls_ca=Path("x"), timeout=3.0, stream=False)
    check_usage("go", options, {})
