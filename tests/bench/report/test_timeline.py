from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.timeline import (
    ServerSeries,
    count_held,
    count_in_flight,
    server_series,
    thin,
)
from trtllm_serve_cli.bench.stats.statistics import max_in_flight

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), min_size=1, max_size=60).map(
    lambda spans: [(begin / 10, (begin + length) / 10) for begin, length in spans]
)


def _records(spans: list[tuple[float, float]]) -> list[RequestRecord]:
    return [RequestRecord(index, begin, begin, end, 1) for index, (begin, end) in enumerate(spans)]


@given(SPANS)
def test_peak_matches_the_summary(spans: list[tuple[float, float]]) -> None:
    steps = count_in_flight(_records(spans))
    assert max(value for _, value in steps) == max_in_flight(_records(spans))
    assert steps[-1][1] == 0
    assert min(value for _, value in steps) >= 0


@given(SPANS, st.integers(2, 20))
def test_thinning_keeps_the_peak_and_the_end(spans: list[tuple[float, float]], most: int) -> None:
    steps = count_in_flight(_records(spans))
    fewer = thin(steps, most)
    assert len(fewer) <= most + 1
    assert max(fewer, key=lambda p: p[1])[1] == max(steps, key=lambda p: p[1])[1]
    assert fewer[-1] == steps[-1]


def test_held_requests_are_due_but_not_sent() -> None:
    late = RequestRecord(0, due_s=1.0, sent_s=3.0, end_s=4.0, num_input_tokens=1)
    prompt = RequestRecord(1, due_s=1.0, sent_s=1.0, end_s=4.0, num_input_tokens=1)
    assert count_held([late, prompt]) == [(1.0, 1.0), (3.0, 0.0)]


def _sample(at_s: float, run: int = 0, **engine: int) -> dict[str, object]:
    models = [{"num_pending": 4}, {"num_pending": None}]
    gpus = [{"utilization": 0.5}, {"utilization": 1.0}]
    return {
        "at_s": at_s,
        "target": 0,
        "run": run,
        "models": models,
        "engines": [engine] if engine else [],
        "host": {"gpus": gpus},
    }


def test_server_series_cover_one_run_and_skip_missing_values() -> None:
    samples = [
        _sample(
            1.0, kv_blocks_used=25, kv_blocks_max=100, num_waiting=2, num_active=5, num_scheduled=3
        ),
        _sample(2.0, run=1, num_waiting=9),
        {"at_s": 3.0, "target": 0, "run": 0, "error": "no answer"},
    ]
    assert server_series(samples) == [
        ServerSeries("kv_cache", 0, ((1.0, 25.0),)),
        ServerSeries("queue", 0, ((1.0, 2.0),)),
        ServerSeries("batch", 0, ((1.0, 3.0),)),
        ServerSeries("gpu", 0, ((1.0, 75.0),)),
    ]


def test_queue_uses_tritons_metric_without_engine_metrics() -> None:
    queue = server_series([_sample(1.0)])[0]
    assert (queue.quantity, queue.points) == ("queue", ((1.0, 4.0),))
