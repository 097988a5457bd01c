"""Compute the positions of values and ticks on chart axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)
# With `may_be_log`, the scale is logarithmic if the ratio of the largest value to the smallest
# positive value exceeds this number. On a linear scale, small values would be indistinguishable.
_LOG_FROM = 30.0
# Relative difference up to which values count as equal. `write_number` shows ten digits.
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic scale from `low` to `high`.

    `low` must be less than `high`. If `is_log` is true, `low` must also be positive.
    """

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value, from 0 (at or below `low`) to 1 (at or above `high`)."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, most: int) -> list[float]:
        """Return about `most` tick values, which are round numbers if possible.

        The result contains at least two values.
        """
        return _log_ticks(self, most) if self.is_log else _linear_ticks(self, most)


def fit_scale(
    values: Iterable[float], *, from_zero: bool = False, may_be_log: bool = False
) -> Scale:
    """Return a scale with round limits that covers the finite numbers in `values`.

    `values` may be empty. With `from_zero`, a linear scale includes 0. With `may_be_log`, the scale
    is logarithmic if the largest value is more than `_LOG_FROM` times the smallest positive value.
    Logarithmic scales ignore zero and negative values.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    positive = [value for value in finite if value > 0]
    if may_be_log and positive and high > _LOG_FROM * min(positive):
        return Scale(_round_down(min(positive)), _round_up(high), is_log=True)
    if from_zero:
        low = min(low, 0.0)
    # Values that differ only by rounding errors would all have the same tick label.
    if math.isclose(low, high, rel_tol=_SAME):
        low, high = (0.0, high * 2) if high > 0 else (low, high + 1.0)
    step = _step((high - low) / 5)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def write_number(value: float) -> str:
    """Format a number for an axis, for example `1,500`, `20k` or `0.25`."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.10g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.10g}k"
    return f"{value:,.10g}"


def _linear_ticks(scale: Scale, most: int) -> list[float]:
    step = _step((scale.high - scale.low) / max(most, 1))
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    ticks = [round(number * step, 12) for number in range(first, last + 1)]
    return ticks if len(ticks) > 1 else [scale.low, scale.high]


def _log_ticks(scale: Scale, most: int) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    powers = range(first, last + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [_shift(digit, power) for power in powers for digit in digits]
        within = [t for t in ticks if scale.low * 0.999 <= t <= scale.high * 1.001]
        if len(within) <= most:
            break
    every = math.ceil(len(within) / most)
    return within[::every] if len(within) > 1 else [scale.low, scale.high]


def _step(least: float) -> float:
    """Return the smallest round number that is at least `least`."""
    power = math.floor(math.log10(least))
    return next(_shift(s, power) for s in _STEPS if _shift(s, power) >= least * (1 - 1e-9))


def _round_down(value: float) -> float:
    power = math.floor(math.log10(value))
    return next(_shift(s, power) for s in (5, 2, 1) if _shift(s, power) <= value * (1 + 1e-9))


def _round_up(value: float) -> float:
    power = math.floor(math.log10(value))
    return next(_shift(s, power) for s in (1, 2, 5, 10) if _shift(s, power) >= value * (1 - 1e-9))


def _shift(digit: float, power: int) -> float:
    """Return digit · 10^power.

    For negative powers, divide instead of multiplying, because negative powers of 10.0 have
    rounding errors.
    """
    return digit * 10.0**power if power >= 0 else digit / 10.0**-power
