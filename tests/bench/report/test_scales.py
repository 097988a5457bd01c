from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.report.scales import Scale, fit_scale, write_number

VALUES = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=20)


@given(VALUES, st.booleans(), st.booleans())
def test_scale_contains_every_value_in_order(
    values: list[float], from_zero: bool, may_be_log: bool
) -> None:
    scale = fit_scale(values, from_zero=from_zero, may_be_log=may_be_log)
    slack = (scale.high - scale.low) * 1e-9
    assert all(scale.low - slack <= value <= scale.high + slack for value in values)
    places = [scale.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)


@given(VALUES, st.booleans(), st.integers(3, 10))
def test_ticks_are_on_the_scale_and_few(values: list[float], may_be_log: bool, most: int) -> None:
    scale = fit_scale(values, may_be_log=may_be_log)
    ticks = scale.ticks(most)
    assert 2 <= len(ticks) <= most + 1
    assert all(earlier < later for earlier, later in pairwise(ticks))
    slack = (scale.high - scale.low) * 1e-3 + scale.low * 1e-3
    assert scale.low - slack <= ticks[0]
    assert ticks[-1] <= scale.high + slack


def test_wide_spans_are_logarithmic_only_if_allowed() -> None:
    assert fit_scale([0.3, 700], may_be_log=True) == Scale(0.2, 1000, is_log=True)
    assert fit_scale([0.3, 700]) == Scale(0, 800)
    assert fit_scale([10, 20], may_be_log=True).is_log is False


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0]], ids=["empty", "zero", "equal"])
def test_scale_of_equal_or_no_values_has_a_length(values: list[float]) -> None:
    scale = fit_scale(values)
    assert scale.high > scale.low


@pytest.mark.parametrize("values", [[400.0, 400.0000000000014], [-3.0, -3.0 + 1e-12]])
def test_values_that_differ_by_rounding_errors_have_different_tick_labels(
    values: list[float],
) -> None:
    scale = fit_scale(values)
    labels = [write_number(tick) for tick in scale.ticks(6)]
    assert len(set(labels)) == len(labels)
    assert all(map(scale.holds, values))


def test_ticks_are_round() -> None:
    assert Scale(0, 800).ticks(5) == [0, 200, 400, 600, 800]
    assert Scale(0.1, 0.2).ticks(2) == [0.1, 0.15, 0.2]
    assert Scale(20, 5000, is_log=True).ticks(8) == [20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert Scale(20, 5000, is_log=True).ticks(5) == [30, 100, 300, 1000, 3000]


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.25, "0.25"), (1500, "1,500"), (20000, "20k"), (2.5e6, "2.5M"), (0.1 + 0.2, "0.3")],
)
def test_numbers_are_short(value: float, words: str) -> None:
    assert write_number(value) == words
