"""Test the counters that Prometheus reads as histograms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trtllm_serve_cli.runtime.telemetry.counters import CounterMetrics, RequestCounters, Series
from trtllm_serve_cli.runtime.telemetry.families import (
    ITL,
    OUTPUT_LENGTH,
    REQUESTS,
    TTFT,
    Family,
)


class Families:
    """A fake of Triton's `MetricFamily` that records the value of each series."""

    COUNTER = "counter"

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.num_messages = 0

    def __call__(self, *, name: str, description: str, kind: str) -> Any:
        return SimpleNamespace(Metric=lambda labels: self._metric(name, labels))

    def page(self) -> str:
        lines = []
        for (name, labels), count in self.values.items():
            pairs = ",".join(f'{key}="{value}"' for key, value in labels)
            lines.append(f"{name}{{{pairs}}} {count:g}\n")
        return "".join(lines)

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        key = (name, tuple(labels.items()))
        self.values[key] = 0.0

        def increment(value: float) -> None:
            self.num_messages += 1
            self.values[key] += value

        return SimpleNamespace(increment=increment)


@given(values=st.lists(st.floats(0, 1e4)), histogram=st.sampled_from([TTFT, ITL]))
def test_buckets_count_values_up_to_their_bound(values: list[float], histogram: Family) -> None:
    counters, name = RequestCounters(), histogram.name
    for value in values:
        counters.observe(histogram, value)
    counts = counters.read()
    for bound in histogram.bounds:
        assert counts[Series(f"{name}_bucket", f"{bound:g}")] == sum(v <= bound for v in values)
    assert (
        counts[Series(f"{name}_bucket", "+Inf")] == counts[Series(f"{name}_count")] == len(values)
    )
    assert math.isclose(counts[Series(f"{name}_sum")], math.fsum(values), abs_tol=1e-6)


def test_all_outcomes_exist_from_the_start() -> None:
    counts = RequestCounters().read()
    assert {series.value for series in counts if series.name == REQUESTS.name} == set(
        REQUESTS.values
    )
    assert not any(counts.values())


def test_publishes_only_changed_counters() -> None:
    families, counters = Families(), RequestCounters()
    metrics = CounterMetrics(SimpleNamespace(MetricFamily=families), {"model": "m"})
    counters.count(REQUESTS, 1, "stop")
    metrics.publish(counters.read())
    metrics.publish(counters.read())
    assert families.num_messages == 1
    counters.count(REQUESTS, 2, "stop")
    metrics.publish(counters.read())
    assert families.values[REQUESTS.name, (("model", "m"), ("outcome", "stop"))] == 3


def test_upstreams_histograms_have_upstreams_label() -> None:
    families = Families()
    CounterMetrics(SimpleNamespace(MetricFamily=families), {"model": "m"})
    labels = {name: dict(labels) for name, labels in families.values}
    assert labels[f"{OUTPUT_LENGTH.name}_sum"]["response_metric_type"] == "total_output_tokens"
    names = {each.name for each in text_string_to_metric_families(families.page())}
    assert f"{OUTPUT_LENGTH.name}_bucket" in names
