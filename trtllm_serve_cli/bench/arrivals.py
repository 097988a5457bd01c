"""When requests are sent: an open loop with due times made ahead, or a closed loop."""

from __future__ import annotations

from dataclasses import dataclass
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
    variation is 1 / sqrt(burstiness).
    """

    request_rate_per_s: float
    arrival: ArrivalProcess = "poisson"
    burstiness: float = 1.0


@dataclass(frozen=True, slots=True)
class AtConcurrency:
    """Closed loop: so many requests in flight; the next is due when one of them ends."""

    concurrency: int


Load = AllAtOnce | AtRate | AtConcurrency


def plan_due_times(
    load: AllAtOnce | AtRate, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """When each request is due, in seconds from the start, sorted; the first is due at 0."""
    due_s = np.zeros(num_requests)
    if isinstance(load, AtRate):
        due_s[1:] = np.cumsum(_draw_gaps(load, num_requests - 1, rng))
    return due_s


def _draw_gaps(load: AtRate, num_gaps: int, rng: np.random.Generator) -> NDArray[np.float64]:
    mean_s = 1 / load.request_rate_per_s
    match load.arrival:
        case "constant":
            return np.full(num_gaps, mean_s)
        case "poisson":
            return rng.exponential(mean_s, num_gaps)
        case "gamma":
            return rng.gamma(load.burstiness, mean_s / load.burstiness, num_gaps)
