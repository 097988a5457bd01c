from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.noise import (
    mean_of_runs,
    middle,
    rank,
    ratio_of_requests,
    ratio_of_runs,
    resample,
    statistic,
    t_quantile,
)

FIGURES = st.lists(st.floats(min_value=0.1, max_value=1000), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_t_quantile_is_that_of_the_tables(freedom: float, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=0.002)


def test_welch_interval_is_the_one_by_hand() -> None:
    # Logarithms with means 0 and 1, and a variance of 0.01 each: four degrees of freedom.
    before = [math.exp(value) for value in (-0.1, 0.0, 0.1)]
    after = [math.exp(value) for value in (0.9, 1.0, 1.1)]
    half = 2.776 * math.sqrt(0.02 / 3)
    expected = (math.exp(1 - half), math.exp(1 + half))
    assert ratio_of_runs(before, after) == pytest.approx(expected, rel=1e-3)


@given(FIGURES, FIGURES)
def test_turning_the_question_round_turns_the_ratio_over(a: list[float], b: list[float]) -> None:
    there, back = ratio_of_runs(a, b), ratio_of_runs(b, a)
    assert there is not None
    assert back is not None
    if there[1] < 1e100:
        assert there[0] == pytest.approx(1 / back[1], rel=1e-6)


def test_welch_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        before = np.exp(rng.normal(0, 0.05, 4)).tolist()
        after = np.exp(rng.normal(0.1, 0.1, 5)).tolist()
        interval = ratio_of_runs(before, after)
        assert interval is not None
        covered += interval[0] <= math.exp(0.1) <= interval[1]
    assert 0.92 <= covered / 400 <= 0.98


def test_one_run_or_a_figure_of_zero_has_no_ratio_of_runs() -> None:
    assert ratio_of_runs([1.0], [1.0, 2.0]) is None
    assert ratio_of_runs([0.0, 1.0], [1.0, 2.0]) is None
    assert mean_of_runs([3.0]) is None


def test_runs_that_are_all_alike_leave_no_doubt() -> None:
    assert ratio_of_runs([2.0, 2.0], [3.0, 3.0]) == pytest.approx((1.5, 1.5))


def test_mean_of_runs_is_students() -> None:
    values = [math.exp(value) for value in (0.9, 1.0, 1.1)]
    half = 4.303 * 0.1 / math.sqrt(3)
    expected = (math.exp(1 - half), math.exp(1 + half))
    assert mean_of_runs(values) == pytest.approx(expected, rel=1e-3)


@given(
    st.lists(st.lists(st.floats(1, 100), max_size=4), min_size=1, max_size=20),
    st.sampled_from([None, 50.0, 95.0, 100.0]),
)
def test_statistics_drawn_again_stay_within_the_sample(
    groups: list[list[float]], percent: float | None
) -> None:
    values = [value for group in groups for value in group]
    drawn = resample(groups, (percent,))[:, 0]
    if not values:
        assert drawn.size == 0
        return
    assert drawn.min() >= min(values) * (1 - 1e-9)
    assert drawn.max() <= max(values) * (1 + 1e-9)


def test_bootstrap_of_a_mean_is_as_wide_as_theory_says() -> None:
    sample = np.random.default_rng(2).normal(100, 10, 400)
    low, high = middle(resample([[value] for value in sample.tolist()], (None,))[:, 0])
    assert (high - low) / 2 == pytest.approx(1.96 * sample.std() / 20, rel=0.1)


def test_values_of_one_request_are_drawn_together() -> None:
    rng = np.random.default_rng(3)
    levels = rng.normal(100, 10, 50)
    groups = [[level] * 20 for level in levels.tolist()]
    apart = [[level] for group in groups for level in group]
    together, each = (middle(resample(g, (None,))[:, 0]) for g in (groups, apart))
    assert together[1] - together[0] > 3 * (each[1] - each[0])


def test_ratio_of_requests_holds_the_ratio_of_the_samples() -> None:
    rng = np.random.default_rng(4)
    before = [[value] for value in rng.gamma(9, 10, 500).tolist()]
    after = [[value * 1.2] for (value,) in before]
    interval = ratio_of_requests(before, after, 50)
    assert interval is not None
    assert 1.05 < interval[0] < 1.2 < interval[1] < 1.35


@given(st.sampled_from(["50", "95", "97.5", "99.9", "99.99"]), st.integers(1, 10**8))
def test_rank_is_that_of_exact_numbers(percent: str, num: int) -> None:
    assert rank(float(percent), num) == max(math.ceil(Fraction(percent) * num / 100), 1)


def test_percentile_is_by_nearest_rank() -> None:
    assert statistic([1, 2, 3, 4], 50) == 2
    assert statistic([1, 2, 3, 4], None) == 2.5
