"""Define benchmark loads and compute request due times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.choices import ArrivalProcess


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """An open loop in which all requests are due at the start."""


@dataclass(frozen=True, slots=True)
class AtRate:
    """An open loop in which requests are due at a mean rate, regardless of the responses.

    `arrival` is the arrival process, which determines the gaps between due times:

    - `constant`: all gaps are equal.
    - `poisson`: the gaps are exponentially distributed.
    - `gamma`: the gaps follow a gamma distribution with shape `burstiness`, so their coefficient of
      variation is 1 / sqrt(burstiness). A `burstiness` of 1 is equivalent to `poisson`. Lower
      values result in larger bursts.

    During the first `ramp_s` seconds, the rate increases linearly from 0. If `concurrency` is set,
    due requests wait while `concurrency` requests are in flight.
    """

    request_rate_per_s: float
    arrival: ArrivalProcess = "poisson"
    burstiness: float = 1.0
    concurrency: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """A closed loop that keeps `concurrency` requests in flight.

    When a request finishes, the next one is due. During the first `ramp_s` seconds, the number of
    requests in flight increases linearly.
    """

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AtTimes:
    """An open loop that replays recorded due times at `speed` times the recorded speed.

    `times_s` must be in ascending order. If `concurrency` is set, due requests wait while
    `concurrency` requests are in flight.
    """

    times_s: tuple[float, ...] = field(repr=False)
    speed: float = 1.0
    concurrency: int | None = None


OpenLoad = AllAtOnce | AtRate | AtTimes
Load = OpenLoad | AtConcurrency


def ramp_s(load: Load) -> float:
    """Return the ramp duration in seconds, or 0 if the load does not start with a ramp."""
    return load.ramp_s if isinstance(load, AtRate | AtConcurrency) else 0.0


def plan_due_times(
    load: OpenLoad, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the due times in ascending order, in seconds after the first request.

    The result has fewer than `num_requests` times if the load replays a shorter recording.
    """
    match load:
        case AllAtOnce():
            return np.zeros(num_requests)
        case AtTimes(times_s, speed):
            times = np.asarray(times_s[:num_requests], np.float64)
            return (times - times[:1]) / speed
        case AtRate(rate_per_s, "constant"):
            # Do not add up gaps, because their rounding errors would also add up.
            return _stretch(np.arange(num_requests) / rate_per_s, load)
        case AtRate():
            due_s = np.zeros(num_requests)
            due_s[1:] = _stretch(np.cumsum(_draw_gaps(load, num_requests - 1, rng)), load)
            return due_s


def plan_due_times_until(
    load: AtRate | AtTimes, duration_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the due times of all requests that are due before `duration_s`.

    The times are in ascending order, in seconds after the first request.
    """
    if isinstance(load, AtTimes):
        due_s = plan_due_times(load, len(load.times_s), rng)
    elif load.arrival == "constant":
        # A ramp only delays requests, so no more requests than without a ramp are due.
        due_s = plan_due_times(load, int(load.request_rate_per_s * duration_s) + 2, rng)
    else:
        due_s = _draw_times_until(load, duration_s, rng)
    return due_s[due_s < duration_s]


def _draw_times_until(
    load: AtRate, duration_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw due times until the first one that is not before `duration_s`, or some more."""
    times = [np.zeros(1)]
    block = max(int(load.request_rate_per_s * duration_s / 4), 16)
    while _stretch(times[-1][-1:], load)[0] < duration_s:
        times.append(times[-1][-1] + np.cumsum(_draw_gaps(load, block, rng)))
    return _stretch(np.concatenate(times), load)


def _draw_gaps(load: AtRate, num_gaps: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the random gaps between due times, in seconds, ignoring the ramp."""
    gaps: NDArray[np.float64] = _GAPS[load.arrival](
        load, 1 / load.request_rate_per_s, num_gaps, rng
    )
    return gaps


# Maps each random arrival process to the function that draws its gaps, in seconds.
_GAPS: dict[ArrivalProcess, Callable[[AtRate, float, int, np.random.Generator], Any]] = {
    "poisson": lambda load, mean_s, num_gaps, rng: rng.exponential(mean_s, num_gaps),
    "gamma": lambda load, mean_s, num_gaps, rng: rng.gamma(
        load.burstiness, mean_s / load.burstiness, num_gaps
    ),
}


def _stretch(times_s: NDArray[np.float64], load: AtRate) -> NDArray[np.float64]:
    """Apply the ramp to due times that were planned for the full rate.

    At time t during the ramp, the expected number of earlier requests is the full rate times
    t² / (2 ramp). After the ramp, it is the full rate times (t - ramp / 2). This function inverts
    both formulas.
    """
    ramp = load.ramp_s
    if not ramp:
        return times_s
    grown: NDArray[np.float64] = np.where(
        times_s < ramp / 2, np.sqrt(2 * ramp * times_s), times_s + ramp / 2
    )
    return grown
