"""Speed limits, compared with those computed by hand for an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.samples import configs
from trtllm_serve_cli.sizing.capacity import Demand, plan_memory
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.parallelism import Parallelism, check_parallelism
from trtllm_serve_cli.sizing.precision import WEIGHT_FORMATS
from trtllm_serve_cli.sizing.roofline import Speed, estimate_speed
from trtllm_serve_cli.sizing.shape import parse_shape

_16 = WEIGHT_FORMATS["bfloat16"]
_LLAMA = parse_shape(configs.LLAMA_2_7B)


def _estimate(demand: Demand, gpu: str = "h200", **parallelism: int) -> Speed:
    at, card = Parallelism(**parallelism), load_gpu(gpu)
    room = plan_memory(_LLAMA, at, card, demand).num_sequences
    return estimate_speed(_LLAMA, at, card, demand, room)


def test_saturated_request_rate_of_an_h200() -> None:
    # 670 TFLOP/s over two operations for each of 6.61e9 parameters and 148 tokens.
    demand = Demand(_16, _16, _16, input_len=128, output_len=20, max_seq_len=148)
    speed = _estimate(demand)
    assert speed.saturated_requests_per_s == pytest.approx(343, rel=0.02)
    assert speed.saturated_tokens_per_s == pytest.approx(20 * speed.saturated_requests_per_s)


def test_single_stream_rate_of_an_h200() -> None:
    # 4.3 TB/s over 13.2 GB of weights and 0.18 GB of KV cache.
    demand = Demand(_16, _16, _16, input_len=200, output_len=300, max_seq_len=500)
    assert _estimate(demand).single_stream_tokens_per_s == pytest.approx(320, rel=0.01)


def test_half_the_bytes_double_the_rate() -> None:
    demand = Demand(_16, _16, _16, input_len=1, output_len=1, max_seq_len=2)
    fp8 = replace(demand, weights=WEIGHT_FORMATS["fp8"])
    ratio = _estimate(fp8).single_stream_tokens_per_s / _estimate(demand).single_stream_tokens_per_s
    # Not quite: the head stays in 16 bits.
    assert ratio == pytest.approx(2 * 6.607e9 / (6.476e9 + 2 * 0.131e9), rel=0.01)


def test_pipeline_stages_do_not_speed_up_a_single_stream() -> None:
    demand = Demand(_16, _16, _16, input_len=128, output_len=20, max_seq_len=148)
    one, split, staged = (_estimate(demand, **at) for at in ({}, {"tp": 2}, {"pp": 2}))
    alone = one.single_stream_tokens_per_s
    assert split.single_stream_tokens_per_s == pytest.approx(2 * alone, rel=0.01)
    assert staged.single_stream_tokens_per_s == pytest.approx(alone, rel=0.01)
    assert staged.saturated_tokens_per_s > 1.8 * one.saturated_tokens_per_s


def test_single_token_reads_only_its_experts() -> None:
    shape = parse_shape(configs.MIXTRAL_8X7B)
    demand = Demand(_16, _16, _16, input_len=1, output_len=1, max_seq_len=2)
    gpu = load_gpu("h200")
    alone = estimate_speed(shape, Parallelism(), gpu, demand, 1).single_stream_tokens_per_s
    # 12.88e9 active parameters, without the embedding.
    assert alone == pytest.approx(4.3e12 / (2 * (12.88e9 - 0.131e9)), rel=0.01)
    spread = check_parallelism(shape, 8, moe_ep=8)
    # With one expert per GPU, those chosen are on two of eight: a whole expert is read.
    shared = estimate_speed(shape, spread, gpu, demand, 1).single_stream_tokens_per_s
    assert shared < 8 * alone / 2


def test_mla_reads_the_latent_instead_of_heads() -> None:
    shape, gpu = parse_shape(configs.DEEPSEEK_V3), load_gpu("b200")
    demand = Demand(_16, _16, _16, input_len=1024, output_len=256, max_seq_len=1280)
    at = check_parallelism(shape, 8)
    assert estimate_speed(shape, at, gpu, demand, 64).single_stream_tokens_per_s > 500
