"""Compute latencies from the buckets of a Prometheus histogram."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_serve_cli.metrics.parse import Snapshot


@dataclass(frozen=True, slots=True)
class Latency:
    """The distribution of a latency, in milliseconds.

    Percentiles are interpolated within a bucket. The last bucket has no upper bound, so a
    percentile in the last bucket is reported as the bucket's lower bound.
    """

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


def read_latency(
    now: Snapshot, before: Snapshot | None, name: str, labels: Mapping[str, str]
) -> Latency | None:
    """Return the latency from the histogram `name`, which must be in seconds.

    If `before` is set, include only observations since that snapshot. Return `None` if the
    histogram is missing, or has no observations or no sum.
    """
    buckets = _read_buckets(now, name, labels)
    total_s = now.value(f"{name}_sum", **labels)
    if before is not None:
        earlier = _read_buckets(before, name, labels)
        # Subtract the earlier counts. If a count has decreased, the counters were reset, so all
        # observations are new.
        if all(count >= earlier.get(bound, 0.0) for bound, count in buckets.items()):
            buckets = {bound: count - earlier.get(bound, 0.0) for bound, count in buckets.items()}
            if total_s is not None:
                total_s -= before.value(f"{name}_sum", **labels) or 0.0
    count = buckets.get(math.inf, 0.0)
    if not count or total_s is None:
        return None
    p50, p90, p99 = (1000 * quantile(buckets, each) for each in (0.5, 0.9, 0.99))
    return Latency(int(count), 1000 * total_s / count, p50, p90, p99)


def quantile(buckets: Mapping[float, float], q: float) -> float:
    """Return the quantile `q`, interpolated as in Prometheus' `histogram_quantile`.

    `buckets` maps upper bounds to cumulative counts. The last bound must be infinite, and its count
    must not be 0.
    """
    rank = q * buckets[math.inf]
    lower, below = 0.0, 0.0
    for bound in sorted(buckets):
        count = buckets[bound]
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def _read_buckets(snapshot: Snapshot, name: str, labels: Mapping[str, str]) -> dict[float, float]:
    buckets: dict[float, float] = {}
    for sample in snapshot.find(f"{name}_bucket", **labels):
        bound = _as_bound(sample.labels.get("le", ""))
        if bound is not None:
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return buckets


def _as_bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
