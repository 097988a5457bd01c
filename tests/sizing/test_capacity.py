"""Memory use of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import configs
from trtllm_serve_cli.sizing.capacity import (
    CONTEXT_BYTES,
    NCCL_BYTES,
    WORKSPACE_BYTES,
    Demand,
    Memory,
    activation_bytes,
    plan_memory,
)
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.kv_cache import kv_bytes_of_sequence
from trtllm_serve_cli.sizing.parallelism import (
    Parallelism,
    check_parallelism,
    find_tensor_parallelisms,
)
from trtllm_serve_cli.sizing.precision import WEIGHT_FORMATS
from trtllm_serve_cli.sizing.shape import parse_shape

_16 = WEIGHT_FORMATS["float16"]
_DEMAND = Demand(_16, _16, _16, input_len=128, output_len=20, max_seq_len=148)
_CONFIGS = [config for name, config in vars(configs).items() if name.isupper()]


def test_plans_memory_of_llama() -> None:
    total = 143_771 << 20
    weights = 2 * 6_738_415_616
    # Twice the residual stream; gate, up and product of the MLP; logits in single precision.
    activations = 8192 * 2 * (2 * 4096 + 3 * 11008) + 2048 * 32000 * 4
    left = total - weights - activations - WORKSPACE_BYTES - CONTEXT_BYTES
    assert plan_memory(
        parse_shape(configs.LLAMA_2_7B), Parallelism(), load_gpu("h200"), _DEMAND
    ) == Memory(
        total=total,
        weights=weights,
        activations=activations + WORKSPACE_BYTES,
        context=CONTEXT_BYTES,
        kv_cache=int(0.9 * left),
        # Five blocks of 32 tokens each.
        num_sequences=int(0.9 * left) // (160 * 524_288),
        fits=True,
    )


def test_model_that_is_too_large_does_not_fit() -> None:
    memory = plan_memory(parse_shape(configs.LLAMA_2_70B), Parallelism(), load_gpu("a100"), _DEMAND)
    assert (memory.kv_cache, memory.num_sequences, memory.fits) == (0, 0, False)


def test_longest_sequence_must_fit() -> None:
    shape, gpu = parse_shape(configs.LLAMA_3_1_8B), load_gpu("l4")
    short = plan_memory(shape, Parallelism(), gpu, _DEMAND)
    long = plan_memory(shape, Parallelism(), gpu, replace(_DEMAND, max_seq_len=131072))
    assert (short.fits, long.fits) == (True, False)
    assert short.num_sequences == long.num_sequences


def test_plans_the_stage_with_the_least_memory() -> None:
    # With the embedding at one end and the head at the other, neither the first stage nor the
    # second has half of the weights.
    shape = parse_shape(configs.LLAMA_3_1_8B)
    memory = plan_memory(shape, Parallelism(pp=2), load_gpu("h200"), _DEMAND)
    assert memory.weights * 2 == pytest.approx(2 * 8_030_261_248, rel=1e-4)
    assert memory.context == CONTEXT_BYTES + NCCL_BYTES


def test_scale_applies_to_weights() -> None:
    shape, gpu = parse_shape(configs.LLAMA_2_7B), load_gpu("h200")
    memory = plan_memory(shape, Parallelism(), gpu, replace(_DEMAND, scale=1.1))
    assert memory.weights == round(1.1 * 2 * 6_738_415_616)


@pytest.mark.parametrize(
    ("config", "measured_mib"),
    [(configs.LLAMA_2_7B, 580), (configs.LLAMA_3_1_8B, 736), (configs.LLAMA_2_70B, 1472)],
)
def test_activations_match_measurements(config: dict[str, Any], measured_mib: int) -> None:
    # In PyTorch 2.11 on an H200, 8192 tokens, without the logits.
    demand = replace(_DEMAND, max_batch_size=0)
    activations = activation_bytes(parse_shape(config), Parallelism(), demand)
    assert 0.89 < (measured_mib << 20) / activations < 0.93


def test_counts_activations_of_experts() -> None:
    # Two experts of a token, each three times its inner width and one hidden width.
    shape = parse_shape(configs.MIXTRAL_8X7B)
    demand = replace(_DEMAND, max_num_tokens=1, max_batch_size=1)
    per_token = 2 * (2 * 4096 + 2 * (3 * 14336 + 4096))
    assert activation_bytes(shape, Parallelism(), demand) == per_token + 4 * 32000


@given(st.sampled_from(_CONFIGS), st.data())
def test_more_tensor_parallelism_never_needs_more_memory(
    config: dict[str, Any], data: st.DataObject
) -> None:
    shape = parse_shape(config)
    possible = find_tensor_parallelisms(shape, 16)
    if len(possible) < 3:
        return
    few, many = sorted(data.draw(st.permutations(possible[1:]))[:2])
    less, more = (
        plan_memory(shape, check_parallelism(shape, tp), load_gpu("h200"), _DEMAND)
        for tp in (few, many)
    )
    assert more.weights <= less.weights
    assert more.activations <= less.activations
    assert more.num_sequences >= less.num_sequences


@given(st.sampled_from(_CONFIGS), st.integers(1, 4096), st.integers(1, 4096))
def test_longer_sequences_never_use_less(config: dict[str, Any], one: int, other: int) -> None:
    shape = parse_shape(config)
    short, long = sorted((one, other))
    assert kv_bytes_of_sequence(shape, short, 16) <= kv_bytes_of_sequence(shape, long, 16)


@given(st.sampled_from(_CONFIGS), st.floats(0.1, 1), st.floats(0.1, 1))
def test_memory_is_never_allocated_twice(config: dict[str, Any], one: float, other: float) -> None:
    shape = parse_shape(config)
    for fraction in (one, other):
        demand = replace(_DEMAND, kv_cache_free_gpu_mem_fraction=fraction)
        memory = plan_memory(shape, Parallelism(), load_gpu("h200"), demand)
        taken = memory.weights + memory.activations + memory.context + memory.kv_cache
        assert taken <= memory.total or not memory.fits
