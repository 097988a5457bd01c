from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.spec import RequestSpec


def _plain(specs: list[RequestSpec]) -> list[tuple[list[int], int]]:
    return [(spec.input_ids.tolist(), spec.num_output_tokens) for spec in specs]


@given(seed=st.integers(0, 2**63))
def test_same_seed_draws_same_requests(seed: int) -> None:
    first, second = (
        TokenNormDist(8, 3, 4, 2).draw(5, 100, np.random.default_rng(seed)) for _ in range(2)
    )
    assert _plain(first) == _plain(second)


def test_seed_zero_differs_from_seed_one() -> None:
    zero, one = (TokenNormDist().draw(3, 100, np.random.default_rng(seed)) for seed in (0, 1))
    assert _plain(zero) != _plain(one)


@given(
    mean=st.floats(1, 50),
    stdev=st.floats(0, 50),
    num_requests=st.integers(0, 20),
    vocab_size=st.integers(1, 50),
)
def test_lengths_are_positive_and_ids_in_the_vocabulary(
    mean: float, stdev: float, num_requests: int, vocab_size: int
) -> None:
    workload = TokenNormDist(mean, stdev, mean, stdev)
    specs = workload.draw(num_requests, vocab_size, np.random.default_rng(1))
    assert len(specs) == num_requests
    for spec in specs:
        assert spec.num_output_tokens >= 1
        assert spec.input_ids.size >= 1
        assert spec.input_ids.dtype == np.int32
        assert spec.input_ids.min() >= 0
        assert spec.input_ids.max() < vocab_size


def test_lengths_follow_the_distribution() -> None:
    specs = TokenNormDist(128, 5, 20, 2).draw(4000, 10, np.random.default_rng(0))
    inputs = [spec.input_ids.size for spec in specs]
    outputs = [spec.num_output_tokens for spec in specs]
    # Here, 1/20 of the standard deviation is three standard errors of the mean.
    assert abs(np.mean(inputs) - 128) < 0.25
    assert abs(np.mean(outputs) - 20) < 0.1
    assert abs(np.std(inputs) - 5) < 0.25


def test_zero_deviation_draws_one_length() -> None:
    specs = TokenNormDist(7, 0, 3, 0).draw(4, 10, np.random.default_rng(0))
    assert {(spec.input_ids.size, spec.num_output_tokens) for spec in specs} == {(7, 3)}
