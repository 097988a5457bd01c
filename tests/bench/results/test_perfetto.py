from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tests.bench.results.made import make_result, make_run
from trtllm_serve_cli.bench.arrivals import AtConcurrency, AtRate
from trtllm_serve_cli.bench.records import RequestError, RequestRecord
from trtllm_serve_cli.bench.results.perfetto import assign_slots, phases, render_trace
from trtllm_serve_cli.bench.results.stored import StoredResult
from trtllm_serve_cli.bench.statistics import max_in_flight


def _events(result: StoredResult, kind: str) -> list[dict[str, Any]]:
    events = json.loads(render_trace(result))["traceEvents"]
    return [event for event in events if event["ph"] == kind]


def test_no_two_requests_share_a_slot_and_none_is_spare() -> None:
    records = make_run(AtRate(40))
    placed = assign_slots(records)
    slots: dict[int, list[RequestRecord]] = {}
    for slot, record in placed:
        slots.setdefault(slot, []).append(record)
    for own in slots.values():
        assert all(earlier.end_s <= later.sent_s for earlier, later in pairwise(own))
    assert len(slots) == max_in_flight(records)
    assert len(placed) == len(records)


def test_a_closed_loop_has_a_track_for_each_place(keep: Callable[..., StoredResult]) -> None:
    result = keep(make_result(AtConcurrency(4)))
    names = [event["args"]["name"] for event in _events(result, "M")]
    assert names == ["tensorrt_llm", "slot 0", "slot 1", "slot 2", "slot 3"]


def test_phases_fill_their_request(keep: Callable[..., StoredResult]) -> None:
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


def test_counters_have_the_requests_in_flight_and_what_the_server_told(
    keep: Callable[..., StoredResult],
) -> None:
    result = keep()
    counters = _events(result, "C")
    assert {event["name"] for event in counters} == {
        "in flight",
        "KV cache of the server: In use (%)",
        "Queue of the server: Requests that wait",
        "Batch of the server: Requests in the engine",
    }
    in_flight = [event["args"]["value"] for event in counters if event["name"] == "in flight"]
    assert max(in_flight) == result.figures["max_in_flight"]


def test_runs_are_processes_of_their_own(keep: Callable[..., StoredResult]) -> None:
    result = keep(make_result(runs=2))
    titles = {
        event["pid"]: event["args"]["name"]
        for event in _events(result, "M")
        if event["name"] == "process_name"
    }
    assert titles == {0: "tensorrt_llm, run 0", 1: "tensorrt_llm, run 1"}


def test_queue_and_prefill_are_one_where_the_server_does_not_tell_them_apart() -> None:
    record = RequestRecord(0, 0.0, 1.0, 3.0, 5, (2.0, 3.0), (1, 1))
    assert phases(record) == [("queue and prefill", 1.0, 2.0), ("decode", 2.0, 3.0)]


def test_failed_request_without_tokens_never_decoded() -> None:
    record = RequestRecord(0, 0.0, 1.0, 3.0, 5, error=RequestError("timed_out"))
    assert phases(record) == [("queue and prefill", 1.0, 3.0)]
