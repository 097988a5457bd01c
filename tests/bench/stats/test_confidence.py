from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.stats.confidence import (
    around_pooled,
    middle,
    rank,
    ratio_of_requests,
    ratio_of_runs,
    resample,
    resample_singles,
    statistic,
    t_quantile,
)

FIGURES = st.lists(st.floats(min_value=0.1, max_value=1000), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("degrees_of_freedom", "expected"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_t_quantile_matches_published_tables(degrees_of_freedom: float, expected: float) -> None:
    assert t_quantile(degrees_of_freedom) == pytest.approx(expected, abs=0.002)


def test_welch_interval_matches_a_calculation_by_hand() -> None:
    # Logarithms with means 0 and 1, and a variance of 0.01 each: four degrees of freedom.
    before = [math.exp(value) for value in (-0.1, 0.0, 0.1)]
    after = [math.exp(value) for value in (0.9, 1.0, 1.1)]
    half = 2.776 * math.sqrt(0.02 / 3)
    expected = (math.exp(1 - half), math.exp(1 + half))
    assert ratio_of_runs(before, after) == pytest.approx(expected, rel=1e-3)


@given(FIGURES, FIGURES)
def test_swapping_before_and_after_inverts_the_ratio(a: list[float], b: list[float]) -> None:
    forward, inverse = ratio_of_runs(a, b), ratio_of_runs(b, a)
    assert forward is not None
    assert inverse is not None
    if forward[1] < 1e100:
        assert forward[0] == pytest.approx(1 / inverse[1], rel=1e-6)


def test_welch_interval_has_95_percent_coverage() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        before = np.exp(rng.normal(0, 0.05, 4)).tolist()
        after = np.exp(rng.normal(0.1, 0.1, 5)).tolist()
        interval = ratio_of_runs(before, after)
        assert interval is not None
        covered += interval[0] <= math.exp(0.1) <= interval[1]
    assert 0.92 <= covered / 400 <= 0.98


def test_single_runs_and_zeros_have_no_ratio_of_runs() -> None:
    assert ratio_of_runs([1.0], [1.0, 2.0]) is None
    assert ratio_of_runs([0.0, 1.0], [1.0, 2.0]) is None
    assert around_pooled(3.0, [3.0]) is None
    assert around_pooled(3.0, [3.0, 0.0]) is None


def test_identical_runs_have_an_interval_of_zero_width() -> None:
    assert ratio_of_runs([2.0, 2.0], [3.0, 3.0]) == pytest.approx((1.5, 1.5))


def test_interval_around_the_pooled_value_uses_students_t() -> None:
    values = [math.exp(value) for value in (0.9, 1.0, 1.1)]
    half = 4.303 * 0.1 / math.sqrt(3)
    expected = (math.exp(1 - half), math.exp(1 + half))
    assert around_pooled(math.exp(1), values) == pytest.approx(expected, rel=1e-3)


def test_interval_is_wider_if_the_runs_differ_from_the_pooled_value() -> None:
    half = 4.303 * math.sqrt((0.1**2 + 0 + 0.3**2) / 6)
    values = [math.exp(value) for value in (0.9, 1.0, 1.3)]
    expected = (math.exp(1 - half), math.exp(1 + half))
    assert around_pooled(math.exp(1), values) == pytest.approx(expected, rel=1e-3)


@given(
    st.lists(st.lists(st.floats(1, 100), max_size=4), min_size=1, max_size=40),
    st.sampled_from([None, 50.0, 95.0, 100.0]),
)
def test_resampled_statistics_stay_within_the_sample(
    groups: list[list[float]], percent: float | None
) -> None:
    values = [value for group in groups for value in group]
    (drawn,) = resample(groups, (percent,))
    if drawn is None:
        assert percent is not None or len([group for group in groups if group]) < 20
        return
    assert drawn.min() >= min(values) * (1 - 1e-9)
    assert drawn.max() <= max(values) * (1 + 1e-9)


def _interval(
    groups: Sequence[Sequence[float]], percent: float | None = None
) -> tuple[float, float]:
    (drawn,) = resample(groups, (percent,))
    assert drawn is not None
    return middle(drawn)


@pytest.mark.parametrize(
    ("num", "percent"),
    [(0, 50), (19, 50), (19, None), (99, 95), (499, 99), (100_000, 100), (99, 5)],
)
def test_too_few_requests_or_tail_values_have_no_interval(num: int, percent: float | None) -> None:
    values = [float(value) for value in range(1, num + 1)]
    assert resample([[value] for value in values], (percent,)) == [None]
    if percent is not None:
        assert resample_singles(np.array(values), (percent,)) == [None]


@pytest.mark.parametrize(("num", "percent"), [(20, 50), (20, None), (100, 95), (500, 99), (120, 5)])
def test_enough_requests_on_both_sides_have_an_interval(num: int, percent: float | None) -> None:
    values = [float(value) for value in range(1, num + 1)]
    low, high = _interval([[value] for value in values], percent)
    assert 1 < low < high < num
    if percent is not None:
        (drawn,) = resample_singles(np.array(values), (percent,))
        assert drawn is not None
        assert middle(drawn) == pytest.approx((low, high), rel=0.3)


def test_tail_gaps_are_counted_by_request() -> None:
    rng = np.random.default_rng(0)
    one_stalls = [rng.uniform(10, 11, 100) + 50 * (index == 0) for index in range(40)]
    assert resample(one_stalls, (99,)) == [None]
    each_stalls = [np.append(rng.uniform(10, 11, 99), rng.uniform(50, 60, 2)) for _ in range(40)]
    low, high = _interval([gaps.tolist() for gaps in each_stalls], 99)
    assert 50 < low < high


def test_percentile_of_equal_values_has_an_interval_of_zero_width() -> None:
    assert _interval([[5.0]] * 30, 99) == (5, 5)


def test_bootstrap_interval_of_a_mean_has_the_theoretical_width() -> None:
    sample = np.random.default_rng(2).normal(100, 10, 400)
    low, high = _interval([[value] for value in sample.tolist()])
    assert (high - low) / 2 == pytest.approx(1.96 * sample.std() / 20, rel=0.1)


def test_values_of_one_request_are_resampled_together() -> None:
    rng = np.random.default_rng(3)
    levels = rng.normal(100, 10, 50)
    groups = [[level] * 20 for level in levels.tolist()]
    apart = [[level] for group in groups for level in group]
    together, each = _interval(groups), _interval(apart)
    assert together[1] - together[0] > 3 * (each[1] - each[0])


def test_ratio_of_requests_contains_the_true_ratio() -> None:
    rng = np.random.default_rng(4)
    before = [[value] for value in rng.gamma(9, 10, 500).tolist()]
    after = [[value * 1.2] for (value,) in before]
    interval = ratio_of_requests(before, after, 50)
    assert interval is not None
    assert 1.05 < interval[0] < 1.2 < interval[1] < 1.35


def test_too_few_requests_have_no_ratio() -> None:
    rng = np.random.default_rng(6)
    before, after = ([[value] for value in rng.gamma(9, 1, 20).tolist()] for _ in range(2))
    assert ratio_of_requests(before, after, 99) is None
    assert ratio_of_requests(before, after, 50) is not None
    assert ratio_of_requests(before, after[:19], 50) is None


@example("99.99", 99_999_999)
@given(st.sampled_from(["50", "95", "97.5", "99.9", "99.99"]), st.integers(1, 10**8))
def test_rank_matches_exact_arithmetic(percent: str, num: int) -> None:
    assert rank(float(percent), num) == max(math.ceil(Fraction(percent) * num / 100), 1)


def test_percentile_is_by_nearest_rank() -> None:
    assert statistic([1, 2, 3, 4], 50) == 2
    assert statistic([1, 2, 3, 4], None) == 2.5
