from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.metrics.histogram import quantile, read_latency
from trtllm_serve_cli.metrics.parse import parse_metrics

BOUNDS = (0.01, 0.1, 1.0)


def page(counts: tuple[int, ...], total_s: float) -> str:
    bounds = (*map(str, BOUNDS), "+Inf")
    lines = [f'h_bucket{{model="m",le="{b}"}} {c}\n' for b, c in zip(bounds, counts, strict=True)]
    return "".join(lines) + f'h_sum{{model="m"}} {total_s}\n'


def test_percentiles_are_interpolated_as_in_prometheus() -> None:
    snapshot = parse_metrics(page((0, 8, 10, 10), 5.0), 0.0)
    latency = read_latency(snapshot, None, "h", {"model": "m"})
    assert latency is not None
    assert (latency.count, latency.mean_ms) == (10, 500.0)
    assert latency.p50_ms == pytest.approx(10 + 90 * 5 / 8)
    assert latency.p90_ms == pytest.approx(100 + 900 * 1 / 2)


def test_latency_covers_the_time_between_two_scrapes() -> None:
    before = parse_metrics(page((0, 8, 10, 10), 5.0), 0.0)
    now = parse_metrics(page((2, 10, 12, 12), 5.02), 1.0)
    latency = read_latency(now, before, "h", {"model": "m"})
    assert latency is not None
    assert (latency.count, round(latency.mean_ms), latency.p50_ms) == (2, 10, 5.0)


def test_latency_after_a_restart_covers_the_time_since_the_restart() -> None:
    before = parse_metrics(page((0, 8, 10, 10), 5.0), 0.0)
    now = parse_metrics(page((1, 1, 1, 1), 0.004), 1.0)
    latency = read_latency(now, before, "h", {"model": "m"})
    assert latency is not None
    assert (latency.count, latency.mean_ms, latency.p50_ms) == (1, 4.0, 5.0)


def test_latency_is_none_without_requests() -> None:
    assert read_latency(parse_metrics(page((0, 0, 0, 0), 0.0), 0.0), None, "h", {}) is None
    assert read_latency(parse_metrics("a 1\n", 0.0), None, "h", {}) is None


def test_latency_is_none_without_a_sum() -> None:
    before = parse_metrics(page((0, 8, 10, 10), 5.0), 0.0)
    buckets = page((2, 10, 12, 12), 5.02).rpartition("h_sum")[0]
    now = parse_metrics(buckets, 1.0)
    assert read_latency(now, None, "h", {"model": "m"}) is None
    assert read_latency(now, before, "h", {"model": "m"}) is None


@given(values=st.lists(st.floats(0.0001, 0.99), min_size=1), q=st.floats(0.01, 1.0))
def test_a_percentile_is_in_the_bucket_of_its_exact_value(values: list[float], q: float) -> None:
    buckets = {bound: float(sum(v <= bound for v in values)) for bound in (*BOUNDS, math.inf)}
    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    upper = min(bound for bound in BOUNDS if exact <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    assert lower <= quantile(buckets, q) <= upper


def test_quantile_is_capped_at_the_last_finite_bound() -> None:
    assert quantile({0.1: 0.0, 1.0: 1.0, math.inf: 10.0}, 0.9) == 1.0
