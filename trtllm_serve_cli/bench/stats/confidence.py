"""Compute 95% confidence intervals for statistics and for ratios of statistics.

`ratio_of_runs` (Welch's method) and `around_pooled` (sectioning) require several runs and account
for the variation between runs. Both compute the interval from the logarithms of the values.

All other intervals account only for the variation between requests. They are computed with the
percentile bootstrap, which resamples whole requests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
_CONFIDENCE = 0.95
_RESAMPLES = (100, 1000)
_RESAMPLING_WORK = 50_000_000
# Number of values to resample at a time, so that the arrays fit in the CPU cache.
_BLOCK_SIZE = 50_000
# Minimum number of requests for the bootstrap, whose intervals are too narrow for smaller samples.
_MIN_GROUPS = 20
# Minimum number of requests above and below a percentile. With fewer requests, resampling cannot
# estimate the percentile's interval.
_MIN_BEYOND = 5


def rank(percent: float, num: int) -> int:
    """Return the nearest rank of a percentile among `num` sorted values, starting from 1.

    The computation uses exact fractions. With floating-point numbers, rounding errors could raise
    the rank of the 99.9th percentile among 1000 values from 999 to 1000 (the maximum).
    """
    numerator, denominator = _exact_fraction(percent)
    return max(-(-numerator * num // denominator), 1)


@functools.cache
def _exact_fraction(percent: float) -> tuple[int, int]:
    """Return the numerator and denominator of `percent` / 100."""
    fraction = Fraction(str(percent)) / 100
    return fraction.numerator, fraction.denominator


def statistic(sample: Sequence[float] | NDArray[np.float64], percent: float | None) -> float:
    """Return a percentile of a non-empty sample, or the mean if `percent` is `None`."""
    if percent is None:
        return fmean(sample)
    values = np.asarray(sample, np.float64)
    index = rank(percent, values.size) - 1
    return float(np.partition(values, index)[index])


def ratio_of_runs(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval for the geometric mean of `after` divided by that of `before`.

    `before` and `after` contain one value for each run. Return `None` if either contains fewer than
    two values, or if a value is zero or negative.
    """
    if min(len(before), len(after)) < 2 or min(*before, *after) <= 0:
        return None
    a, b = [math.log(value) for value in before], [math.log(value) for value in after]
    parts = (variance(a) / len(a), variance(b) / len(b))
    difference = fmean(b) - fmean(a)
    error = math.sqrt(sum(parts))
    if not error:
        return math.exp(difference), math.exp(difference)
    # Approximate the degrees of freedom with the Welch-Satterthwaite equation.
    shares = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
    half = t_quantile(sum(parts) ** 2 / shares) * error
    return math.exp(difference - half), math.exp(difference + half)


def around_pooled(pooled: float, values: Sequence[float]) -> Interval | None:
    """Return the interval for a statistic of all runs, from the statistic of each run.

    `pooled` is the statistic of all requests, and `values` contains the statistic of each of the k
    runs. With the logarithms p of `pooled` and x_i of `values`, the interval of the logarithm is
    p ± t(k - 1) * sqrt(sum((x_i - p)²) / (k * (k - 1))), where t is Student's quantile. It always
    contains `pooled`. Return `None` if there are fewer than two runs, or if a value is zero or
    negative.

    Source: sectioning, in S. Asmussen and P. W. Glynn, "Stochastic Simulation" (2007), section
    III.5a. For percentiles: M. K. Nakayama, "Confidence intervals for quantiles using sectioning
    when applying variance-reduction techniques", ACM TOMACS 24 (2014).
    """
    num_runs = len(values)
    if num_runs < 2 or min(pooled, *values) <= 0:
        return None
    center = math.log(pooled)
    squares = math.fsum((math.log(value) - center) ** 2 for value in values)
    half = t_quantile(num_runs - 1) * math.sqrt(squares / (num_runs * (num_runs - 1)))
    return pooled * math.exp(-half), pooled * math.exp(half)


def ratio_of_requests(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], percent: float | None
) -> Interval | None:
    """Return the interval for a statistic of `after` divided by the same statistic of `before`.

    `before` and `after` contain a group of values for each request. Return `None` if either sample
    cannot be resampled, or if a resampled statistic is zero or negative.
    """
    drawn = [resample(groups, (percent,), seed)[0] for seed, groups in enumerate((before, after))]
    known = [values for values in drawn if values is not None and values.min() > 0]
    if len(known) < 2:
        return None
    num = min(values.size for values in known)
    return middle(known[1][:num] / known[0][:num])


def resample(
    groups: Sequence[Sequence[float] | NDArray[np.float64]],
    percents: Sequence[float | None],
    seed: int = 0,
) -> list[NDArray[np.float64] | None]:
    """Draw samples of whole groups with replacement and return the statistics of each sample.

    In `percents`, `None` stands for the mean. The result contains one item for each item in
    `percents`: an array with one value per sample, or `None` if too few groups have values, in
    total or on either side of the percentile. Resampling only draws values from the original
    sample, so it cannot estimate percentiles near the minimum or the maximum.

    A sample is stored as the number of times that each group was drawn, so the values have to be
    sorted only once.
    """
    filled = [group for group in groups if len(group)]
    if len(filled) < _MIN_GROUPS:
        return [None] * len(percents)
    sizes = [len(group) for group in filled]
    values = np.concatenate([np.asarray(group, np.float64) for group in filled])
    order = np.argsort(values, kind="stable")
    ranked, owner = values[order], np.repeat(np.arange(len(filled)), sizes)[order]
    starts = np.cumsum([0, *sizes[:-1]])
    ends = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    known = [percent for percent in percents if _is_estimable(ranked, ends, percent)]
    rng = np.random.default_rng(seed)
    fewest, most = _RESAMPLES
    found = np.empty((min(max(_RESAMPLING_WORK // ranked.size, fewest), most), len(known)))
    num_rows = max(_BLOCK_SIZE // ranked.size, 1)
    for start in range(0, len(found), num_rows) if known else ():
        rows = found[start : start + num_rows]
        times = _draw_times(rng, len(rows), len(filled))
        rows[:] = _weighted(ranked, times[:, owner], known)
    columns = dict(zip(known, found.T, strict=True))
    return [columns.get(percent) for percent in percents]


def resample_singles(
    ranked: NDArray[np.float64], percents: Sequence[float]
) -> list[NDArray[np.float64] | None]:
    """Return the same kind of result as `resample` for sorted, independent values.

    Only the percentiles are drawn, from the distribution that they have in `resample`: the k-th
    smallest of n resampled values has rank ceil(n · u) in the original sample. Here, u is the k-th
    smallest of n uniform random numbers and follows Beta(k, n - k + 1).
    """
    n = ranked.size
    drawn: list[NDArray[np.float64] | None] = []
    for percent in percents:
        k = rank(percent, n)
        if n < _MIN_GROUPS or not _is_estimable(ranked, (ranked, ranked), percent):
            drawn.append(None)
            continue
        uniform = np.random.default_rng(0).beta(k, n - k + 1, _RESAMPLES[1])
        drawn.append(ranked[np.ceil(uniform * n).astype(np.int64) - 1])
    return drawn


def middle(values: NDArray[np.float64]) -> Interval:
    """Return the interval that contains the middle 95% of `values`."""
    outside = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.percentile(values, (outside, 100 - outside))
    return float(low), float(high)


def _is_estimable(
    ranked: NDArray[np.float64],
    ends: tuple[NDArray[np.float64], NDArray[np.float64]],
    percent: float | None,
) -> bool:
    """Return whether enough groups have values on both sides of a percentile, or true for the mean.

    `ends` contains the minimum and maximum of each group. The group that contains the percentile
    itself is not counted. Other groups with an equal value are counted on both sides.
    """
    if percent is None:
        return True
    value = ranked[rank(percent, ranked.size) - 1]
    lowest, highest = ends
    num = min(np.count_nonzero(lowest <= value), np.count_nonzero(highest >= value))
    return num > _MIN_BEYOND


def _draw_times(rng: np.random.Generator, num_samples: int, num_groups: int) -> NDArray[np.int64]:
    """Return how many times each sample contains each group.

    The result has the shape (`num_samples`, `num_groups`).
    """
    drawn = rng.integers(0, num_groups, (num_samples, num_groups))
    drawn += np.arange(num_samples)[:, None] * num_groups
    times = np.bincount(drawn.ravel(), minlength=num_samples * num_groups)
    return times.reshape(num_samples, num_groups)


def _weighted(
    ranked: NDArray[np.float64], times: NDArray[np.int64], percents: Sequence[float | None]
) -> NDArray[np.float64]:
    """Return the statistics of samples, with one row for each sample.

    The value `ranked[i]` occurs `times[k, i]` times in sample k.
    """
    # Accumulate the counts over all samples, so that a single `searchsorted` call per percentile
    # covers every sample.
    seen = np.cumsum(times)
    ends = seen[ranked.size - 1 :: ranked.size]
    sizes = np.diff(ends, prepend=0)
    columns = []
    for percent in percents:
        if percent is None:
            columns.append(times @ ranked / sizes)
        else:
            ranks = [rank(percent, size) for size in sizes.tolist()]
            found = np.searchsorted(seen, ends - sizes + ranks)
            columns.append(ranked[found % ranked.size])
    return np.stack(columns, axis=1)


def t_quantile(degrees_of_freedom: float, confidence: float = _CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t distribution.

    The number of degrees of freedom, n, must be at least 1. If t = sqrt(n) · tan(angle), the
    density of the angle is proportional to cos(angle)^(n - 1). This density is integrated
    numerically to find the angle of the quantile.
    """
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees_of_freedom - 1)
    steps = (density[1:] + density[:-1]) / 2
    area = np.concatenate(([0.0], np.cumsum(steps)))
    angle = float(np.interp(confidence * area[-1], area, angles))
    return math.sqrt(degrees_of_freedom) * math.tan(angle)
