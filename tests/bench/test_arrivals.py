from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.arrivals import AllAtOnce, AtRate, plan_due_times

rates = st.builds(
    AtRate,
    request_rate_per_s=st.floats(0.01, 1e5),
    arrival=st.sampled_from(["poisson", "constant", "gamma"]),
    burstiness=st.floats(0.1, 10),
)


@given(load=rates, num_requests=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_due_times_start_at_zero_and_are_sorted(load: AtRate, num_requests: int, seed: int) -> None:
    due_s = plan_due_times(load, num_requests, np.random.default_rng(seed))
    assert due_s.shape == (num_requests,)
    assert due_s[0] == 0
    assert (np.diff(due_s) >= 0).all()


@given(load=rates, seed=st.integers(0, 2**32))
def test_same_seed_plans_same_times(load: AtRate, seed: int) -> None:
    first, second = (plan_due_times(load, 20, np.random.default_rng(seed)) for _ in range(2))
    assert first.tolist() == second.tolist()


@given(load=rates)
def test_mean_rate_is_the_rate_asked_for(load: AtRate) -> None:
    num_gaps = 20_000
    due_s = plan_due_times(load, num_gaps + 1, np.random.default_rng(0))
    # Five standard errors of the mean gap; the coefficient of variation is at most sqrt(1 / 0.1).
    assert num_gaps / due_s[-1] == pytest.approx(load.request_rate_per_s, rel=0.12)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_sets_the_spread_of_gamma_gaps(burstiness: float) -> None:
    load = AtRate(10, "gamma", burstiness)
    gaps = np.diff(plan_due_times(load, 50_000, np.random.default_rng(0)))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_gaps_are_equal() -> None:
    due_s = plan_due_times(AtRate(4, "constant"), 4, np.random.default_rng(0))
    assert due_s.tolist() == [0, 0.25, 0.5, 0.75]


def test_all_at_once_is_due_at_the_start() -> None:
    assert plan_due_times(AllAtOnce(), 3, np.random.default_rng(0)).tolist() == [0, 0, 0]
