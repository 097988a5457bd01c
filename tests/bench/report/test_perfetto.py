from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.samples.bench_results import make_result, make_run
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency, AtRate
from trtllm_serve_cli.bench.model.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.report.perfetto import (
    assign_slots,
    phases,
    render_trace,
    request_events,
)
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.stats.statistics import max_in_flight


def _events(result: StoredResult, kind: str) -> list[dict[str, Any]]:
    events = json.loads(render_trace(result))["traceEvents"]
    return [event for event in events if event["ph"] == kind]


def test_slots_do_not_overlap_and_none_is_unused() -> None:
    records = make_run(AtRate(40))
    placed = assign_slots(records)
    slots: dict[int, list[RequestRecord]] = {}
    for slot, record in placed:
        slots.setdefault(slot, []).append(record)
    for own in slots.values():
        assert all(earlier.end_s <= later.sent_s for earlier, later in pairwise(own))
    assert len(slots) == max_in_flight(records)
    assert len(placed) == len(records)


def test_closed_loop_has_a_track_for_each_slot(keep: Callable[..., StoredResult]) -> None:
    result = keep(make_result(AtConcurrency(4)))
    names = [event["args"]["name"] for event in _events(result, "M")]
    assert names == ["tensorrt_llm", "slot 1", "slot 2", "slot 3", "slot 4"]


def test_phases_cover_their_request(keep: Callable[..., StoredResult]) -> None:
    result = keep(make_result(AtRate(30), num_requests=40))
    spans = _events(result, "X")
    requests = [span for span in spans if span["name"].startswith("request ")]
    assert len(requests) == 40
    for request in requests:
        end = request["ts"] + request["dur"]
        inside = [
            span
            for span in spans
            if span is not request
            and span["tid"] == request["tid"]
            and request["ts"] <= span["ts"] < end
        ]
        assert abs(sum(span["dur"] for span in inside) - request["dur"]) < 0.01
        assert {span["name"] for span in inside} <= {"queue", "prefill", "decode"}


def test_counters_include_requests_in_flight_and_server_metrics(
    keep: Callable[..., StoredResult],
) -> None:
    result = keep()
    counters = _events(result, "C")
    assert {(event["name"], *event["args"]) for event in counters} == {
        ("Requests", "in flight"),
        ("Server KV cache", "In use (%)"),
        ("Server queue", "Waiting requests"),
        ("Server batch", "Running requests"),
    }
    in_flight = [event["args"]["in flight"] for event in counters if event["name"] == "Requests"]
    assert max(in_flight) == result.figures["max_in_flight"]


def test_counters_start_with_the_value_at_time_zero(keep: Callable[..., StoredResult]) -> None:
    waiting = {-0.9: 1, -0.4: 2, 0.6: 3}
    samples = tuple(
        {"run": 0, "target": 0, "at_s": at_s, "engines": [{"num_waiting": number}]}
        for at_s, number in waiting.items()
    )
    counters = _events(replace(keep(), samples=samples), "C")
    queue = [event for event in counters if event["name"] == "Server queue"]
    assert [(each["ts"], each["args"]["Waiting requests"]) for each in queue] == [
        (0, 2),
        (600_000, 3),
    ]


def test_each_run_is_a_process(keep: Callable[..., StoredResult]) -> None:
    result = keep(make_result(runs=2))
    titles = {
        event["pid"]: event["args"]["name"]
        for event in _events(result, "M")
        if event["name"] == "process_name"
    }
    assert list(titles.values()) == ["tensorrt_llm, run 0", "tensorrt_llm, run 1"]


def test_slot_numbers_do_not_conflict_with_process_numbers(
    keep: Callable[..., StoredResult],
) -> None:
    spans = _events(keep(make_result(AtConcurrency(3), runs=2)), "X")
    processes = {span["pid"] for span in spans}
    for process in processes:
        assert {span["tid"] for span in spans if span["pid"] == process} == {1, 2, 3}
    assert len(processes) == 2
    assert not processes & {0, 1, 2, 3}


INSTANT = st.integers(0, 3_000_000_000).map(lambda number: number / 0.7e9)
TIMES = st.tuples(INSTANT, INSTANT, INSTANT, INSTANT).map(sorted)


@given(st.lists(TIMES, min_size=1, max_size=30))
def test_spans_of_a_track_are_nested_or_disjoint(times: list[list[float]]) -> None:
    records = [
        RequestRecord(index, 0.0, sent, end, 5, (first, end), (1, 1), queue_s=begun - sent)
        for index, (sent, begun, first, end) in enumerate(times)
    ]
    open_ends: dict[int, list[int]] = {}
    spans = [
        (event["tid"], round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in request_events(records, process=99)
        if event["ph"] == "X"
    ]
    for slot, begin, duration in sorted(spans, key=lambda span: (span[1], -span[2])):
        ends = open_ends.setdefault(slot, [])
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or begin + duration <= ends[-1]
        ends.append(begin + duration)


def test_queue_and_prefill_are_one_phase_without_server_times() -> None:
    record = RequestRecord(0, 0.0, 1.0, 3.0, 5, (2.0, 3.0), (1, 1))
    assert phases(record) == [("queue and prefill", 1.0, 2.0), ("decode", 2.0, 3.0)]


def test_failed_request_without_tokens_has_no_decode_phase() -> None:
    record = RequestRecord(0, 0.0, 1.0, 3.0, 5, error=RequestError("timed_out"))
    assert phases(record) == [("queue and prefill", 1.0, 3.0)]
