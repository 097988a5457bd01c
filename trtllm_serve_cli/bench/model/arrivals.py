"""When requests are sent: an open loop with due times made ahead, or a closed loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ArrivalProcess = Literal["poisson", "constant", "gamma"]


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Every request is due at the start."""


@dataclass(frozen=True, slots=True)
class AtRate:
    """Open loop: requests are due at a mean rate, whatever the server does with them.

    The gaps between due times are all equal (constant), exponential (poisson), or gamma-distributed
    with shape `burstiness`: 1 is Poisson, less is burstier, more is steadier; their coefficient of
    variation is 1 / sqrt(burstiness). During the first `ramp_s` the rate grows from 0 in a straight
    line. With `concurrency` a request that is due waits while so many are in flight.
    """

    request_rate_per_s: float
    arrival: ArrivalProcess = "poisson"
    burstiness: float = 1.0
    concurrency: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """Closed loop: so many requests in flight; the next is due when one of them ends.

    The places open one after another during the first `ramp_s`.
    """

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Open loop at recorded times, `speed` times as fast; `times_s` are sorted."""

    times_s: tuple[float, ...] = field(repr=False)
    speed: float = 1.0
    concurrency: int | None = None


OpenLoad = AllAtOnce | AtRate | AtTimes
Load = OpenLoad | AtConcurrency


def ramp_s(load: Load) -> float:
    """How long the load grows before it is what was asked for."""
    return load.ramp_s if isinstance(load, AtRate | AtConcurrency) else 0.0


def plan_due_times(
    load: OpenLoad, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """When each request is due, in seconds from the start, sorted; the first is due at 0.

    A recording has no more than it has: the result is as long as its times then.
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
    """As `plan_due_times`, of all requests that are due before `duration_s`."""
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
    """Gaps as they are at the full rate."""
    mean_s = 1 / load.request_rate_per_s
    match load.arrival:
        case "constant":
            return np.full(num_gaps, mean_s)
        case "poisson":
            return rng.exponential(mean_s, num_gaps)
        case "gamma":
            return rng.gamma(load.burstiness, mean_s / load.burstiness, num_gaps)


def _stretch(times_s: NDArray[np.float64], load: AtRate) -> NDArray[np.float64]:
    """Times at the full rate, as they are when it grows from 0 in the first `ramp_s`.

    By the inverse of the number of requests expected until t: t² / (2 ramp) of those at the full
    rate before the end of the ramp, t - ramp / 2 after it.
    """
    ramp = load.ramp_s
    if not ramp:
        return times_s
    grown: NDArray[np.float64] = np.where(
        times_s < ramp / 2, np.sqrt(2 * ramp * times_s), times_s + ramp / 2
    )
    return grown
