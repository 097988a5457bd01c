"""Convert a result to a Perfetto trace with a track for each request slot and each counter.

The trace is JSON in Chrome's "Trace Event Format", with events of the types `X` (complete), `C`
(counter) and `M` (metadata). Each process in the trace represents one run on one target. Each
thread represents a slot. A slot shows one request at a time, so the number of slots is the maximum
number of requests in flight. Times are in microseconds from the start of the run.

Perfetto treats process 0 and thread 0 as idle. If a thread has the same number as its process,
Perfetto displays this thread first, as the main thread. To avoid both effects, slot numbers start
at 1, and process numbers are higher than all slot numbers.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.report.timeline import QUANTITIES, Point, count_in_flight, server_series

TRACE = "trace.json"
Event = dict[str, Any]


def render_trace(result: StoredResult) -> str:
    """Return a JSON trace with all runs of a result."""
    targets = [str(target["name"]) for target in result.summary["targets"]]
    runs = sorted({record.run for record in result.records})
    events: list[Event] = []
    processes = itertools.count(len(result.records) + 1)
    for run in runs:
        for target, name in enumerate(targets):
            process = next(processes)
            title = name if len(runs) == 1 else f"{name}, run {run}"
            own = [r for r in result.records if (r.run, r.target) == (run, target)]
            events += _name("process_name", process, title)
            events += request_events(own, process)
            events += _counters("Requests", "in flight", count_in_flight(own), process)
            for series in server_series(result.samples, run):
                if series.target == target:
                    events += _counters(*QUANTITIES[series.quantity], series.points, process)
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"), ensure_ascii=False
    )


def assign_slots(records: Iterable[RequestRecord]) -> list[tuple[int, RequestRecord]]:
    """Assign each request to the lowest slot that is free when the request is sent.

    Return the slot and the record of each request, sorted by send time. Slot numbers start at 1.
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    num_slots = 0
    placed = []
    for record in sorted(records, key=lambda record: (record.sent_s, record.index, record.turn)):
        while busy and busy[0][0] <= record.sent_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            num_slots += 1
            heapq.heappush(free, num_slots)
        slot = heapq.heappop(free)
        heapq.heappush(busy, (record.end_s, slot))
        placed.append((slot, record))
    return placed


def request_events(records: Iterable[RequestRecord], process: int) -> Iterator[Event]:
    """Yield the trace events for the slots, requests and request phases of one process."""
    placed = assign_slots(records)
    for slot in sorted({slot for slot, _ in placed}):
        yield from _name("thread_name", process, f"slot {slot}", slot)
    for slot, record in placed:
        number = f"{record.index}" if not record.turn else f"{record.index}, turn {record.turn}"
        failed = "" if record.error is None else f": {record.error.kind}"
        about = {
            "input tokens": record.num_input_tokens,
            "output tokens": record.num_output_tokens,
            "due (s)": record.due_s,
            "sent late by (ms)": (record.sent_s - record.due_s) * 1e3,
            **({} if record.error is None else {"error": record.error.message}),
        }
        place = {"pid": process, "tid": slot}
        yield _span(f"request {number}{failed}", record.sent_s, record.end_s, place) | {
            "args": about
        }
        for name, begin_s, end_s in phases(record):
            yield _span(name, begin_s, end_s, place)


def phases(record: RequestRecord) -> list[tuple[str, float, float]]:
    """Return the name, start and end of each phase of a request, in seconds.

    If the server did not report the request's queue time, the `queue and prefill` phase replaces
    the `queue` and `prefill` phases. Phases with zero duration are omitted.
    """
    first_s = record.end_s if record.first_token_s is None else record.first_token_s
    if record.queue_s is None:
        spans = [("queue and prefill", record.sent_s, first_s)]
    else:
        begins_s = min(record.sent_s + record.queue_s, first_s)
        spans = [("queue", record.sent_s, begins_s), ("prefill", begins_s, first_s)]
    spans.append(("decode", first_s, record.end_s))
    return [(name, begin, end) for name, begin, end in spans if end > begin]


def _span(name: str, begin_s: float, end_s: float, place: dict[str, int]) -> Event:
    begin, end = _microseconds(begin_s), _microseconds(end_s)
    return {"name": name, "ph": "X", "ts": begin, "dur": round(end - begin, 3), **place}


def _counters(name: str, unit: str, points: Sequence[Point], process: int) -> Iterator[Event]:
    for time_s, value in _from_start(points):
        at = _microseconds(time_s)
        yield {"name": name, "ph": "C", "ts": at, "pid": process, "args": {unit: value}}


def _from_start(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points from time 0 onwards, starting with the value at time 0.

    Samples from before the start of the run have negative times, which trace viewers reject.
    """
    first = max(bisect.bisect_right(points, 0.0, key=itemgetter(0)) - 1, 0)
    return ((max(time_s, 0.0), value) for time_s, value in points[first:])


def _name(kind: str, process: int, name: str, thread: int = 0) -> Iterator[Event]:
    yield {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
