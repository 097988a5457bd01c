"""The default limits of an engine for a model and a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import configs
from trtllm_serve_cli.sizing.facts import ModelFacts
from trtllm_serve_cli.sizing.gpus import load_gpu, load_gpus
from trtllm_serve_cli.sizing.plan import ParallelPlan, plan_size
from trtllm_serve_cli.sizing.serving_limits import ServingLimits
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sizing.size_options import SizeOptions


def plan_one(config: dict[str, Any], gpu: str, **options: Any) -> ParallelPlan:
    facts = ModelFacts("local:/m", parse_shape(config))
    (plan,) = plan_size(facts, load_gpu(gpu), 8, SizeOptions(**{"tp": 1, **options})).plans
    return plan


@pytest.mark.parametrize(
    ("config", "gpu", "options", "limits"),
    [
        (configs.LLAMA_2_7B, "h200", {}, ServingLimits(1024, 16384)),
        (configs.LLAMA_2_7B, "h100", {}, ServingLimits(512, 16384)),
        (configs.LLAMA_2_7B, "a100", {}, ServingLimits(512, 4096)),
        (configs.LLAMA_2_7B, "l4", {}, ServingLimits(256, 2048)),
        (configs.LLAMA_2_70B, "h200", {}, ServingLimits(256, 2048)),
        (configs.LLAMA_2_70B, "h200", {"tp": 8}, ServingLimits(1024, 8192)),
        (configs.LLAMA_2_70B, "h200", {"tp": 8, "quantization": "fp8"}, ServingLimits(1024, 16384)),
    ],
)
def test_limits_follow_from_the_card_and_the_model(
    config: dict[str, Any], gpu: str, options: dict[str, Any], limits: ServingLimits
) -> None:
    assert plan_one(config, gpu, **options).limits == limits


def test_model_that_does_not_fit_has_no_limits() -> None:
    assert plan_one(configs.LLAMA_2_70B, "l4").limits is None


@given(
    gpu=st.sampled_from(sorted(load_gpus())),
    config=st.sampled_from([configs.LLAMA_2_7B, configs.LLAMA_3_1_8B, configs.MIXTRAL_8X7B]),
    tp=st.sampled_from([1, 2, 4, 8]),
)
def test_limits_stay_within_their_bounds_and_grow_with_the_gpus(
    gpu: str, config: dict[str, Any], tp: int
) -> None:
    smaller, larger = (
        plan_one(config, gpu, tp=number, dtype="float16").limits for number in (tp, min(8, 2 * tp))
    )
    if smaller is None or larger is None:
        return
    assert smaller.max_num_seqs in (256, 512, 1024)
    assert smaller.max_num_tokens in (2048, 4096, 8192, 16384)
    assert larger.max_num_seqs >= smaller.max_num_seqs
    assert larger.max_num_tokens >= smaller.max_num_tokens
