from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.arrivals import (
    AllAtOnce,
    AtRate,
    AtTimes,
    plan_due_times,
    plan_due_times_until,
)

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
def test_mean_rate_is_the_requested_rate(load: AtRate) -> None:
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


@given(load=rates, duration_s=st.floats(0.01, 2), seed=st.integers(0, 2**32))
def test_duration_includes_exactly_the_due_times_before_its_end(
    load: AtRate, duration_s: float, seed: int
) -> None:
    load = replace(load, request_rate_per_s=min(load.request_rate_per_s, 1000))
    due_s = plan_due_times_until(load, duration_s, np.random.default_rng(seed))
    assert due_s[0] == 0
    assert (np.diff(due_s) >= 0).all()
    assert due_s[-1] < duration_s


@pytest.mark.parametrize(("rate_per_s", "duration_s"), [(8, 2.0), (10, 1.0), (100, 7.0)])
def test_constant_arrivals_number_rate_times_duration(rate_per_s: float, duration_s: float) -> None:
    load = AtRate(rate_per_s, "constant")
    due_s = plan_due_times_until(load, duration_s, np.random.default_rng(0))
    assert due_s.tolist() == [index / rate_per_s for index in range(int(rate_per_s * duration_s))]


def test_ramp_increases_the_rate_linearly() -> None:
    load = AtRate(100, "constant", ramp_s=2.0)
    due_s = plan_due_times_until(load, 5.0, np.random.default_rng(0))
    # t² · rate / (2 · ramp) requests by time t of the ramp, then the full rate.
    for until, expected in ((1.0, 25), (2.0, 100), (3.0, 200), (5.0, 400)):
        assert abs(int((due_s < until).sum()) - expected) <= 1


def test_recorded_times_are_scaled_and_start_at_zero() -> None:
    due_s = plan_due_times(AtTimes((2.0, 3.0, 6.0), speed=2), 2, np.random.default_rng(0))
    assert due_s.tolist() == [0, 0.5]
    due_s = plan_due_times_until(AtTimes((2.0, 3.0, 6.0)), 2.0, np.random.default_rng(0))
    assert due_s.tolist() == [0, 1]
