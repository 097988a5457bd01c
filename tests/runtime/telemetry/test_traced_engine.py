"""Spans of an engine whose updates the test determines."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trtllm_serve_cli.runtime.engine import (
    Engine,
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    PerfMetrics,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.telemetry.spans import Span, SpanExporter
from trtllm_serve_cli.runtime.telemetry.traced_engine import TracedEngine, trace_engine

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class ScriptedEngine:
    """An engine that returns the next list of `updates` in each step."""

    def __init__(self, *updates: list[SequenceUpdate]) -> None:
        self.limits = EngineLimits(100, 1, 100)
        self.submitted: list[GenerationRequest] = []
        self.cancelled: list[int] = []
        self.rejects = False
        self._updates = iter(updates)

    def submit(self, request: GenerationRequest) -> None:
        if self.rejects:
            raise InvalidRequest("no")
        self.submitted.append(request)

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def has_work(self) -> bool:
        return True

    def step(self) -> list[SequenceUpdate]:
        return next(self._updates)

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        pass


class Spans:
    """An exporter that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.is_closed = False

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        self.is_closed = True


class Traced:
    """A traced `ScriptedEngine` whose clock advances by 10 ns at each reading."""

    def __init__(self, *updates: list[SequenceUpdate]) -> None:
        self.inner, self.exporter, self._now_ns = ScriptedEngine(*updates), Spans(), 0
        exporter = cast(SpanExporter, self.exporter)
        self.engine = TracedEngine(self.inner, exporter, self._read_clock)

    def _read_clock(self) -> int:
        self._now_ns += 10
        return self._now_ns

    def times(self) -> dict[str, tuple[int, int]]:
        return {each.name: (each.start_ns, each.end_ns) for each in self.exporter.spans}


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(
        **{"id": 1, "input_ids": (1, 2, 3), "max_new_tokens": 9, "trace_parent": TRACE, **fields}
    )


def test_spans_of_a_request_are_children_of_its_trace() -> None:
    traced = Traced(
        [SequenceUpdate(1, 0, (5,), perf=PerfMetrics(first_scheduled_time_ns=12))],
        [SequenceUpdate(1, 0, (6, 7), "stop", perf=PerfMetrics(first_scheduled_time_ns=12))],
    )
    traced.engine.submit(request())
    assert traced.inner.submitted[0].return_perf_metrics
    traced.engine.step()
    assert traced.exporter.spans == []
    traced.engine.step()
    engine, *parts = traced.exporter.spans
    assert engine.trace_parent == TRACE
    assert {each.trace_parent for each in parts} == {TRACE.replace("b" * 16, engine.id)}
    assert traced.times() == {
        "engine": (10, 30), "queue": (10, 12), "prefill": (12, 20), "decode": (20, 30),
    }  # fmt: skip
    assert engine.events == {"first token": 20}
    assert engine.attributes == {
        "tllm.outcome": "complete",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 3,
    }


def test_request_ends_with_its_last_sequence() -> None:
    traced = Traced(
        [SequenceUpdate(1, 0, (5,), "stop"), SequenceUpdate(1, 1, (5,))],
        [SequenceUpdate(1, 1, (), "length")],
    )
    traced.engine.submit(request(num_return_sequences=2))
    traced.engine.step()
    assert traced.exporter.spans == []
    traced.engine.step()
    # This engine does not report when it has scheduled the request.
    assert [each.name for each in traced.exporter.spans] == ["engine", "decode"]


def test_failed_and_cancelled_requests_have_their_outcome() -> None:
    traced = Traced([SequenceUpdate(1, error="no memory")])
    traced.engine.submit(request())
    traced.engine.submit(request(id=2))
    traced.engine.submit(request(id=3))
    traced.engine.step()
    traced.engine.cancel(2)
    traced.engine.cancel(2)
    traced.engine.close()
    assert [
        (each.attributes["tllm.outcome"], each.failure)
        for each in traced.exporter.spans
        if each.name == "engine"
    ] == [
        ("error", "no memory"),
        ("cancelled", ""),
        ("error", "the engine worker exited before the request was complete"),
    ]
    assert (traced.inner.cancelled, traced.exporter.is_closed) == ([2, 2], True)


def test_rejected_and_untraced_requests_have_no_spans() -> None:
    traced = Traced([SequenceUpdate(2, 0, (5,), "stop")])
    traced.engine.submit(untraced := request(id=2, trace_parent=""))
    assert traced.inner.submitted == [untraced]
    traced.inner.rejects = True
    with pytest.raises(InvalidRequest):
        traced.engine.submit(request())
    assert traced.engine.step() == [SequenceUpdate(2, 0, (5,), "stop")]
    traced.engine.close()
    assert traced.exporter.spans == []


def test_engine_is_traced_only_with_a_collector() -> None:
    engine: Engine = ScriptedEngine()
    assert trace_engine(engine, {}) is engine
    traced = trace_engine(engine, {"TLLM_OTLP_TRACES": "http://127.0.0.1:1/v1/traces"})
    assert isinstance(traced, TracedEngine)
    traced.close()
