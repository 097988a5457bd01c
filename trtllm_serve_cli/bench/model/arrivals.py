"""Arrival processes: open loops with due times planned in advance, and closed loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.choices import ArrivalProcess


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """A load in which every request is due at the start."""


@dataclass(frozen=True, slots=True)
class AtRate:
    """An open loop: requests are due at a mean rate, independent of the server's responses.

    The gaps between due times are equal (constant), exponential (poisson), or gamma-distributed
    with shape `burstiness`: 1 is Poisson, lower is burstier, higher is steadier. Their coefficient
    of variation is 1 / sqrt(burstiness). During the first `ramp_s` the rate increases linearly from
    0. With `concurrency`, a due request waits while that many requests are in flight.
    """

    request_rate_per_s: float
    arrival: ArrivalProcess = "poisson"
    burstiness: float = 1.0
    concurrency: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """A closed loop: `concurrency` requests in flight; the next is due when one of them ends.

    The slots open one after another during the first `ramp_s`.
    """

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtTimes:
    """An open loop at recorded times, replayed `speed` times as fast; `times_s` are sorted."""

    times_s: tuple[float, ...] = field(repr=False)
    speed: float = 1.0
    concurrency: int | None = None


OpenLoad = AllAtOnce | AtRate | AtTimes
Load = OpenLoad | AtConcurrency


def ramp_s(load: Load) -> float:
    """Return the duration of the ramp before the load is complete; 0 without a ramp."""
    return load.ramp_s if isinstance(load, AtRate | AtConcurrency) else 0.0


def plan_due_times(
    load: OpenLoad, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return when each request is due, in seconds from the start, sorted; the first is due at 0.

    The result is shorter than `num_requests` if a recording has fewer times.
    """
    match load:
        case AllAtOnce():
            return np.zeros(num_requests)
        case AtTimes(times_s, speed):
            times = np.asarray(times_s[:num_requests], np.float64)
            return (times - times[:1]) / speed
        case AtRate():
            due_s = np.zeros(num_requests)
            due_s[1:] = _stretch(np.cumsum(_draw_gaps(load, num_requests - 1, rng)), load)
            return due_s


def plan_due_times_until(
    load: AtRate | AtTimes, duration_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the due times of all requests that are due before `duration_s`."""
    if isinstance(load, AtTimes):
        due_s = plan_due_times(load, len(load.times_s), rng)
        return due_s[due_s < duration_s]
    times = [np.zeros(1)]
    block = max(int(load.request_rate_per_s * duration_s / 4), 16)
    while _stretch(times[-1][-1:], load)[0] < duration_s:
        times.append(times[-1][-1] + np.cumsum(_draw_gaps(load, block, rng)))
    due_s = _stretch(np.concatenate(times), load)
    return due_s[due_s < duration_s]


def _draw_gaps(load: AtRate, num_gaps: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw gaps for the full rate, without the ramp, in seconds."""
    gaps: NDArray[np.float64] = _GAPS[load.arrival](
        load, 1 / load.request_rate_per_s, num_gaps, rng
    )
    return gaps


# Each arrival process: (load, mean gap in seconds, number of gaps, generator) -> the gaps.
_GAPS: dict[ArrivalProcess, Callable[[AtRate, float, int, np.random.Generator], Any]] = {
    "constant": lambda load, mean_s, num_gaps, rng: np.full(num_gaps, mean_s),
    "poisson": lambda load, mean_s, num_gaps, rng: rng.exponential(mean_s, num_gaps),
    "gamma": lambda load, mean_s, num_gaps, rng: rng.gamma(
        load.burstiness, mean_s / load.burstiness, num_gaps
    ),
}


def _stretch(times_s: NDArray[np.float64], load: AtRate) -> NDArray[np.float64]:
    """Apply the ramp to times planned for the full rate.

    Uses the inverse of the expected number of requests until t: t² / (2 ramp) times the full rate
    during the ramp, t - ramp / 2 after it.
    """
    ramp = load.ramp_s
    if not ramp:
        return times_s
    grown: NDArray[np.float64] = np.where(
        times_s < ramp / 2, np.sqrt(2 * ramp * times_s), times_s + ramp / 2
    )
    return grown
