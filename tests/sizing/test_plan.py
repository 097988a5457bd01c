"""The whole plan of a model on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import configs
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.facts import ModelFacts
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.parallelism import Parallelism
from trtllm_serve_cli.sizing.plan import SizePlan, plan_size
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sizing.size_options import SizeOptions


def _plan(
    config: dict[str, Any],
    gpu: str = "h200",
    num_gpus: int | None = None,
    weight_bytes: int | None = None,
    **options: Any,
) -> SizePlan:
    facts = ModelFacts("local:/m", parse_shape(config), weight_bytes)
    return plan_size(facts, load_gpu(gpu), num_gpus, SizeOptions(**options))


def _spreads(plan: SizePlan) -> list[tuple[int, int]]:
    return [(each.parallelism.tp, each.parallelism.pp) for each in plan.plans]


def test_lists_every_parallelism_for_the_gpus() -> None:
    assert _spreads(_plan(configs.LLAMA_3_1_8B, num_gpus=4)) == [
        (1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4),
    ]  # fmt: skip
    # Its 28 heads cannot be divided among 8 GPUs.
    assert _spreads(_plan(configs.QWEN_2_5_7B))[6:] == [(4, 2), (2, 4), (1, 8)]


def test_requested_parallelism_is_the_only_row() -> None:
    assert _spreads(_plan(configs.LLAMA_3_1_8B, tp=2, pp=4)) == [(2, 4)]


@pytest.mark.parametrize(
    ("config", "gpu", "num_gpus", "options", "smallest"),
    [
        (configs.LLAMA_3_1_8B, "h200", 8, {}, Parallelism()),
        (configs.LLAMA_2_70B, "a100", 8, {}, Parallelism(2)),
        (configs.LLAMA_2_70B, "h100", 8, {"quantization": "fp8"}, Parallelism()),
        (configs.LLAMA_2_70B, "l4", 8, {}, Parallelism(8)),
        (configs.MIXTRAL_8X7B, "a100-40gb", 8, {}, Parallelism(1, 3)),
        (configs.DEEPSEEK_V3, "h200", 8, {"moe_ep": 8}, Parallelism(8, 1, 1, 8)),
        (configs.LLAMA_3_1_405B, "h100", 8, {}, Parallelism(8, 2)),
        (configs.LLAMA_2_70B, "l4", 2, {}, Parallelism(2, 4)),
    ],
)
def test_finds_the_smallest_plan(
    config: dict[str, Any],
    gpu: str,
    num_gpus: int,
    options: dict[str, Any],
    smallest: Parallelism,
) -> None:
    plan = _plan(config, gpu, num_gpus, **options)
    assert plan.smallest is not None
    assert plan.smallest.parallelism == smallest


def test_smallest_plan_may_not_exist() -> None:
    config = configs.LLAMA_3_1_405B | {"hidden_size": 131072, "head_dim": 1024}
    assert _plan(config, "t4", 1, dtype="float16").smallest is None


@pytest.mark.parametrize(
    ("config", "gpu", "options", "formats"),
    [
        (configs.LLAMA_3_1_8B, "h200", {}, ("bfloat16", "none", "bfloat16")),
        (configs.LLAMA_3_1_8B, "t4", {}, ("float16", "none", "float16")),
        (configs.GEMMA_2_9B, "h200", {}, ("float16", "none", "float16")),
        (configs.DEEPSEEK_V3, "h200", {}, ("bfloat16", "fp8", "bfloat16")),
        (configs.DEEPSEEK_V3, "a100", {"quantization": "int4_awq"},
         ("bfloat16", "int4_awq", "bfloat16")),
        (configs.DEEPSEEK_V3, "a100", {"quantization": "none", "kv_cache_dtype": "int8"},
         ("bfloat16", "none", "int8")),
        (configs.LLAMA_2_7B, "b200", {"quantization": "nvfp4", "kv_cache_dtype": "fp8"},
         ("float16", "nvfp4", "fp8")),
    ],
)  # fmt: skip
def test_chooses_formats(
    config: dict[str, Any], gpu: str, options: dict[str, Any], formats: tuple[str, str, str]
) -> None:
    found = _plan(config, gpu, **options).formats
    assert (found.dtype, found.quantization, found.kv_cache_dtype) == formats


@pytest.mark.parametrize(
    ("config", "options", "lengths"),
    [
        (configs.LLAMA_2_7B, {}, (1024, 256, 1280)),
        (configs.GPT_2, {}, (768, 256, 1024)),
        (configs.GPT_2, {"input_len": 1000}, (1000, 24, 1024)),
        (configs.GPT_2, {"output_len": 1000}, (24, 1000, 1024)),
        (configs.LLAMA_2_7B, {"max_seq_len": 4096}, (3840, 256, 4096)),
        (configs.LLAMA_2_7B, {"max_seq_len": 100}, (50, 50, 100)),
        (configs.LLAMA_2_7B, {"max_seq_len": 4096, "input_len": 100}, (100, 256, 4096)),
        (configs.LLAMA_2_7B, {"input_len": 128, "output_len": 20}, (128, 20, 148)),
    ],
)
def test_chooses_missing_lengths(
    config: dict[str, Any], options: dict[str, int], lengths: tuple[int, int, int]
) -> None:
    demand = _plan(config, **options).demand
    assert (demand.input_len, demand.output_len, demand.max_seq_len) == lengths


_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
          "num_key_value_heads", "vocab_size", "num_local_experts", "num_experts_per_tok",
          "sliding_window", "kv_lora_rank", "max_position_embeddings")  # fmt: skip
_CONFIGS = [config for name, config in vars(configs).items() if name.isupper()]


@given(
    st.sampled_from(_CONFIGS),
    st.dictionaries(st.sampled_from(_SIZES), st.integers(1, 1 << 20), max_size=3),
    st.sampled_from(["t4", "h200", "b300"]),
    st.integers(1, 9),
)
def test_every_valid_shape_has_a_plan(
    config: dict[str, Any], change: dict[str, int], gpu: str, num_gpus: int
) -> None:
    try:
        plan = _plan(config | change, gpu, num_gpus, quantization="int8")
    except BadInput:
        return
    for each in plan.plans:
        assert each.parallelism.world_size <= num_gpus
        assert each.memory.weights > 0
        assert each.speed is None or each.speed.saturated_tokens_per_s > 0


_LENGTH = st.none() | st.integers(1, 5000)


@given(_LENGTH, _LENGTH, _LENGTH)
def test_lengths_never_exceed_the_limit(
    input_len: int | None, output_len: int | None, max_seq_len: int | None
) -> None:
    lengths = {"input_len": input_len, "output_len": output_len, "max_seq_len": max_seq_len}
    try:
        demand = _plan(configs.LLAMA_2_7B, tp=1, **lengths).demand
    except BadInput:
        return
    assert demand.input_len + demand.output_len <= demand.max_seq_len <= 4096
    for name, value in lengths.items():
        assert value is None or getattr(demand, name) == value
    assert min(demand.input_len, demand.output_len) >= 1


def test_index_size_overrides_the_shape_if_served_as_stored() -> None:
    by_shape = _plan(configs.LLAMA_2_7B, tp=1).plans[0].memory.weights
    larger = int(by_shape * 1.05)
    stored = {"weight_bytes": larger, "tp": 1}
    assert _plan(configs.LLAMA_2_7B, **stored).plans[0].memory.weights == larger
    # Weights stored in float32 are cast; those with a different quantization are requantized.
    cast = _plan(configs.LLAMA_2_7B, weight_bytes=2 * by_shape, tp=1)
    requantized = _plan(configs.LLAMA_2_7B, **stored, quantization="int8")
    assert cast.plans[0].memory.weights == by_shape
    assert requantized.demand.scale == 1.0


def test_measures_quantization_without_a_fixed_size() -> None:
    config = configs.LLAMA_2_7B | {"quantization_config": {"quant_method": "bitsandbytes"}}
    plan = _plan(config, weight_bytes=4_000_000_000, tp=1)
    assert plan.formats.quantization == "bitsandbytes"
    assert plan.plans[0].memory.weights == pytest.approx(4e9, rel=1e-6)
    # Some config.json files do not contain the quantization.
    silent = _plan(configs.LLAMA_2_7B, weight_bytes=7_000_000_000, tp=1)
    assert silent.formats.quantization == "as stored"
    assert silent.plans[0].memory.weights == pytest.approx(7e9, rel=1e-6)
    with pytest.raises(BadInput, match="size of the bitsandbytes weights is unknown"):
        _plan(config)


@pytest.mark.parametrize(
    ("config", "options", "what"),
    [
        (configs.LLAMA_2_7B, {"tp": 4, "pp": 4, "num_gpus": 8},
         "The options request 16 GPUs, but the maximum is 8."),
        (configs.LLAMA_2_7B, {"tp": 3}, "The model cannot run with --tp 3."),
        (configs.MIXTRAL_8X7B, {"moe_ep": 16}, "The model cannot run with --moe-ep 16."),
        (configs.LLAMA_2_7B, {"moe_ep": 2}, "The model cannot run with --moe-tp 1 --moe-ep 2."),
        (configs.LLAMA_2_7B, {"gpu": "a100", "quantization": "fp8"},
         "The a100-80gb GPU does not support fp8 weights."),
        (configs.DEEPSEEK_V3, {"gpu": "a100"},
         "The a100-80gb GPU does not support fp8 weights."),
        (configs.LLAMA_2_7B, {"quantization": "nvfp4"},
         "The h200 GPU does not support nvfp4 weights."),
        (configs.LLAMA_2_7B, {"gpu": "t4", "dtype": "bfloat16"},
         "The t4 GPU does not support bfloat16."),
        (configs.LLAMA_2_7B, {"gpu": "a100", "kv_cache_dtype": "fp8"},
         "The a100-80gb GPU does not support fp8 for the KV cache."),
        (configs.LLAMA_2_7B, {"max_seq_len": 5000},
         "--max-seq-len 5000 exceeds the model's maximum length."),
        (configs.LLAMA_2_7B, {"max_seq_len": 100, "input_len": 100, "output_len": 1},
         "The input length 100 plus the output length 1 exceeds 100."),
        (configs.LLAMA_2_7B, {"input_len": 4096},
         "The input length 4096 plus the output length 1 exceeds 4096."),
    ],
)  # fmt: skip
def test_rejects_impossible_options(
    config: dict[str, Any], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput) as caught:
        _plan(config, **options)
    assert caught.value.what == what


def test_lists_only_relevant_assumptions() -> None:
    assumptions = " ".join(_plan(configs.GPT_OSS_120B, num_gpus=1).assumptions)
    assert "18 of 36 layers cache only 128 tokens" in assumptions
    assert "expert" in assumptions
    assert "NCCL" not in assumptions
    assumptions = " ".join(_plan(configs.DEEPSEEK_V3).assumptions)
    assert "has the complete latent KV cache" in assumptions
    assert "NCCL" in assumptions
    assert "Only the language model is counted" in " ".join(_plan(configs.GEMMA_3_4B).assumptions)
