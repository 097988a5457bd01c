"""Count a model's requests in Prometheus counters that Triton publishes.

Histograms are also published as counters: `NAME_bucket` with the label `le`, `NAME_sum` and
`NAME_count`, as in Prometheus. Triton's own histograms would send one message to the server per
observation, for example one per token. Counters send only the increase since the last message.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .families import REQUEST_FAMILIES, Family


class Series(NamedTuple):
    """A time series on Triton's metrics page.

    `name` is the metric name. `value` is the upper bound (`le`) of a histogram bucket or the label
    value of a counter. For other metrics, `value` is empty.
    """

    name: str
    value: str = ""


_HISTOGRAMS = tuple(family for family in REQUEST_FAMILIES if family.type == "histogram")
_FAMILIES = {name: family for family in REQUEST_FAMILIES for name in family.sample_names}


class RequestCounters:
    """A thread-safe store for the values of all request counters and histograms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Series, float] = {
            Series(family.name, value): 0.0
            for family in REQUEST_FAMILIES
            if family.type == "counter"
            for value in family.values or ("",)
        }
        # The number of observations in each bucket, not cumulative.
        self._buckets = {each: [0] * (len(each.bounds) + 1) for each in _HISTOGRAMS}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)

    def count(self, family: Family, number: float = 1, value: str = "") -> None:
        """Increment a counter by `number`. `value` is the family's label value, if any."""
        with self._lock:
            self._counts[Series(family.name, value)] += number

    def observe(self, histogram: Family, value: float) -> None:
        """Add the observed `value` to a histogram."""
        with self._lock:
            self._buckets[histogram][bisect_left(histogram.bounds, value)] += 1
            self._sums[histogram] += value

    def read(self) -> dict[Series, float]:
        """Return the current values of all series."""
        with self._lock:
            series = dict(self._counts)
            for histogram, buckets in self._buckets.items():
                series |= _cumulative(histogram.name, histogram.bounds, buckets)
                series[Series(f"{histogram.name}_sum")] = self._sums[histogram]
        return series


def _cumulative(name: str, bounds: Sequence[float], buckets: Sequence[int]) -> dict[Series, float]:
    series: dict[Series, float] = {}
    total = 0
    for bound, number in zip((*(f"{each:g}" for each in bounds), "+Inf"), buckets, strict=True):
        total += number
        series[Series(f"{name}_bucket", bound)] = total
    series[Series(f"{name}_count")] = total
    return series


class CounterMetrics:
    """The Triton metrics that publish the values of `RequestCounters`.

    `pb_utils` is the `triton_python_backend_utils` module. Each metric has `labels` in addition to
    the family label.
    """

    def __init__(self, pb_utils: Any, labels: Mapping[str, str]) -> None:
        self._families = {
            name: pb_utils.MetricFamily(
                name=name, description=_describe(name), kind=pb_utils.MetricFamily.COUNTER
            )
            for name in _FAMILIES
        }
        self._metrics = {
            series: self._families[series.name].Metric(labels=_labels(series, labels))
            for series in RequestCounters().read()
        }
        self._published = dict.fromkeys(self._metrics, 0.0)

    def publish(self, counts: Mapping[Series, float]) -> None:
        """Increment each metric by the increase in its count since the last call.

        Each increment sends a message to the server.
        """
        for series, count in counts.items():
            if grown := count - self._published[series]:
                self._metrics[series].increment(grown)
                self._published[series] = count

    def close(self) -> None:
        """Release all metrics.

        Call this method while Triton is still running, because each release sends a message to the
        server.
        """
        self._metrics.clear()
        self._families.clear()


_PARTS = {"_bucket": " (count up to le)", "_sum": " (sum)", "_count": " (count)"}


def _describe(name: str) -> str:
    family = _FAMILIES[name]
    return family.help + _PARTS.get(name.removeprefix(family.name), "")


def _labels(series: Series, common: Mapping[str, str]) -> dict[str, str]:
    family = _FAMILIES[series.name]
    if family.type == "counter":
        return {**common, **family.own_label(series.value)}
    bound = {"le": series.value} if series.value else {}
    return {**common, **family.own_label("".join(family.values)), **bound}
