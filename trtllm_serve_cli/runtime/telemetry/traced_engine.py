"""Send spans for the traced requests that an engine worker receives from the gateway.

The gateway bypasses Triton and its models, so the engine worker itself sends the engine spans. A
traced request has these spans:

    engine     from the request's arrival in the worker to its end
    ├ queue    until the engine has scheduled the request for the first time
    ├ prefill  until the first token
    └ decode   until the end

`queue` and `prefill` are missing if the engine has not reported the scheduling time. If no token
was generated, `decode` is missing, and `prefill` lasts until the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..engine import Engine, EngineStats, GenerationRequest, SequenceUpdate
from ..log import MODEL_NAME
from .spans import AttributeValue, Span, SpanExporter, child_trace_parent, new_span_id


def trace_engine(engine: Engine, environ: Mapping[str, str] = os.environ) -> Engine:
    """Wrap `engine` in an engine that sends spans to the URL in TLLM_OTLP_TRACES.

    If TLLM_OTLP_TRACES is not set, return `engine` itself.
    """
    url = environ.get("TLLM_OTLP_TRACES")
    return TracedEngine(engine, SpanExporter(url, MODEL_NAME)) if url else engine


@dataclass(slots=True)
class _Running:
    """A traced request. Times are in nanoseconds on the monotonic clock.

    `num_open` is the number of sequences that have not ended.
    """

    request: GenerationRequest
    submitted_ns: int
    num_open: int
    scheduled_ns: int = 0
    first_token_ns: int = 0
    num_tokens: int = 0
    failure: str = ""


class TracedEngine:
    """An engine that runs requests on `engine` and sends spans for traced requests."""

    def __init__(
        self,
        engine: Engine,
        exporter: SpanExporter,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.limits = engine.limits
        self._engine = engine
        self._exporter = exporter
        self._now_ns = now_ns
        self._running: dict[int, _Running] = {}

    def submit(self, request: GenerationRequest) -> None:
        if not request.trace_parent:
            self._engine.submit(request)
            return
        submitted_ns = self._now_ns()
        # Request the performance metrics, because they contain the scheduling time.
        self._engine.submit(replace(request, return_perf_metrics=True))
        self._running[request.id] = _Running(request, submitted_ns, request.num_return_sequences)

    def cancel(self, request_id: int) -> None:
        self._engine.cancel(request_id)
        if (running := self._running.pop(request_id, None)) is not None:
            self._send(running, "cancelled")

    def has_work(self) -> bool:
        return self._engine.has_work()

    def step(self) -> list[SequenceUpdate]:
        updates = self._engine.step()
        if self._running:
            for update in updates:
                if (running := self._running.get(update.request_id)) is not None:
                    self._observe(running, update)
        return updates

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()
        for running in self._running.values():
            running.failure = "the engine worker exited before the request was complete"
            self._send(running, "error")
        self._exporter.close()

    def _observe(self, running: _Running, update: SequenceUpdate) -> None:
        if update.perf is not None:
            running.scheduled_ns = running.scheduled_ns or update.perf.first_scheduled_time_ns
        if update.token_ids:
            running.first_token_ns = running.first_token_ns or self._now_ns()
            running.num_tokens += len(update.token_ids)
        running.num_open -= update.finish_reason is not None
        if update.error is not None:
            running.failure = update.error
        if update.error is not None or not running.num_open:
            del self._running[update.request_id]
            self._send(running, "error" if running.failure else "complete")

    def _send(self, running: _Running, outcome: str) -> None:
        for span in make_spans(running, outcome, self._now_ns()):
            self._exporter.add(span)


def make_spans(running: _Running, outcome: str, end_ns: int) -> list[Span]:
    """Return the spans of a request that has ended."""
    attributes: dict[str, AttributeValue] = {
        "tllm.outcome": outcome,
        "gen_ai.usage.input_tokens": len(running.request.input_ids),
        "gen_ai.usage.output_tokens": running.num_tokens,
    }
    begin_ns, first_ns = running.submitted_ns, running.first_token_ns
    events = {"first token": first_ns} if first_ns else {}
    parent = running.request.trace_parent
    engine = Span(
        parent, "engine", begin_ns, end_ns, attributes, events, running.failure, new_span_id()
    )
    below = child_trace_parent(parent, engine.id)
    spans = [engine]
    # The scheduling time is 0 if the engine has not scheduled the request or does not report
    # scheduling times.
    if begin_ns <= running.scheduled_ns <= (first_ns or end_ns):
        spans.append(Span(below, "queue", begin_ns, running.scheduled_ns))
        spans.append(Span(below, "prefill", running.scheduled_ns, first_ns or end_ns))
    if first_ns:
        spans.append(Span(below, "decode", first_ns, end_ns))
    return spans
