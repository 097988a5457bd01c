"""Arrival processes: when requests are due, in open loops and closed loops."""

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

    `arrival` sets the distribution of the gaps between due times: equal (`constant`), exponential
    (`poisson`), or gamma with shape `burstiness` and coefficient of variation 1 / sqrt(burstiness).
    A `burstiness` of 1 is Poisson; lower values are burstier, higher values are steadier. During
    the first `ramp_s`, the rate increases linearly from 0. With `concurrency`, a due request waits
    while that many requests are in flight.
    """

    request_rate_per_s: float
    arrival: ArrivalProcess = "poisson"
    burstiness: float = 1.0
    concurrency: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """A closed loop: `concurrency` requests are in flight; when one ends, the next one is due.

    During the first `ramp_s`, the number of requests in flight increases at a constant rate.
    """

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtTimes:
    """An open loop that replays recorded due times, `speed` times as fast.

    `times_s` are sorted. With `concurrency`, a due request waits while that many requests are in
    flight.
    """

    times_s: tuple[float, ...] = field(repr=False)
    speed: float = 1.0
    concurrency: int | None = None


OpenLoad = AllAtOnce | AtRate | AtTimes
Load = OpenLoad | AtConcurrency


def ramp_s(load: Load) -> float:
    """Return the duration of the ramp at the start of the load, or 0 if it has no ramp."""
    return load.ramp_s if isinstance(load, AtRate | AtConcurrency) else 0.0


def plan_due_times(
    load: OpenLoad, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the sorted due times of the requests, in seconds from the first one, which is 0.

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
    """Return random gaps between due times, in seconds, for the full rate without the ramp."""
    gaps: NDArray[np.float64] = _GAPS[load.arrival](
        load, 1 / load.request_rate_per_s, num_gaps, rng
    )
    return gaps


# Functions that draw the gaps for each arrival process, in seconds.
_GAPS: dict[ArrivalProcess, Callable[[AtRate, float, int, np.random.Generator], Any]] = {
    "constant": lambda load, mean_s, num_gaps, rng: np.full(num_gaps, mean_s),
    "poisson": lambda load, mean_s, num_gaps, rng: rng.exponential(mean_s, num_gaps),
    "gamma": lambda load, mean_s, num_gaps, rng: rng.gamma(
        load.burstiness, mean_s / load.burstiness, num_gaps
    ),
}


def _stretch(times_s: NDArray[np.float64], load: AtRate) -> NDArray[np.float64]:
    """Apply the ramp to due times planned for the full rate.

    Until time t, the expected number of requests is the full rate times t² / (2 ramp) during the
    ramp, and times t - ramp / 2 after the ramp. This function inverts that relation.
    """
    ramp = load.ramp_s
    if not ramp:
        return times_s
    grown: NDArray[np.float64] = np.where(
        times_s < ramp / 2, np.sqrt(2 * ramp * times_s), times_s + ramp / 2
    )
    return grown
