"""Count, measure, log and trace the requests to a model."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..engine import InvalidRequest
from ..log import write_log
from ..telemetry.counters import CounterMetrics, RequestCounters
from ..telemetry.families import (
    DURATION,
    GENERATION_TOKENS,
    INPUT_LENGTH,
    ITL,
    OUTPUT_LENGTH,
    PROMPT_TOKENS,
    REQUESTS,
    TTFT,
    Outcome,
)
from ..telemetry.server_metrics import open_server_metrics
from ..telemetry.spans import Span, SpanExporter, read_trace_parent
from ..triton.tensors import Array

# Interval, in seconds, at which the counters are published.
_PERIOD_S = 0.5


class RequestRecord:
    """The record of one request. Times are in nanoseconds on the monotonic clock."""

    def __init__(
        self, ledger: RequestLedger, request_id: str, trace_parent: str, now_ns: int
    ) -> None:
        self.id = request_id
        self.trace_parent = trace_parent
        self.arrival_ns = now_ns
        # The times when the request was submitted to the engine and when its last tokens arrived.
        self.submitted_ns = 0
        self.last_token_ns = 0
        self.num_prompt_tokens = 0
        self.num_tokens = 0
        self.first_token_ns = 0
        self.prompt: str | list[list[int]] | None = None
        self._ledger = ledger
        self._last_ns: dict[tuple[int, int], int] = {}
        # Whether at least one sequence has reached the maximum number of tokens.
        self.reached_limit = False
        self._lock = threading.Lock()
        self._has_ended = False

    def add_tokens(self, sequence: tuple[int, int], count: int) -> None:
        """Record that `count` new tokens have been generated for `sequence`.

        `sequence` contains the row index and the index of the sequence within the row.
        """
        counters, now_ns = self._ledger.counters, self._ledger.now_ns()
        if self.first_token_ns == 0:
            self.first_token_ns = now_ns
            counters.observe(TTFT, (now_ns - self.arrival_ns) / 1e9)
        if last_ns := self._last_ns.get(sequence):
            counters.observe(ITL, (now_ns - last_ns) / 1e9)
        self._last_ns[sequence] = now_ns
        self.add_untimed_tokens(count)

    def add_untimed_tokens(self, count: int) -> None:
        """Record `count` tokens without measuring TTFT and ITL."""
        self.last_token_ns = self._ledger.now_ns()
        self.num_tokens += count
        self._ledger.counters.count(GENERATION_TOKENS, count)

    def complete(self) -> None:
        """Record that all sequences have ended without being cancelled."""
        self.end("length" if self.reached_limit else "stop")

    def now_ns(self) -> int:
        """Return the current time on the record's clock, in nanoseconds."""
        return self._ledger.now_ns()

    def reject(self, error: Exception) -> None:
        """End the request with `error`.

        The outcome is "rejected" if `error` is an `InvalidRequest`, and "error" otherwise.
        """
        self.end("rejected" if isinstance(error, InvalidRequest) else "error", str(error))

    def end(self, outcome: Outcome, why: str = "") -> None:
        """Record the outcome. Only the first call has an effect."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._ledger.close_record(self, outcome, why)

    def spans(self, now_ns: int, why: str) -> list[Span]:
        """Return the request's spans.

        The list is empty if the request is not traced or was not submitted to the engine. Only text
        models have spans for preprocessing and postprocessing.
        """
        if not self.submitted_ns or not self.trace_parent:
            return []
        begin_ns, end_ns = self.submitted_ns, self.last_token_ns or now_ns
        attributes: dict[str, str | int] = {
            "tllm.request_id": self.id,
            "gen_ai.usage.input_tokens": self.num_prompt_tokens,
            "gen_ai.usage.output_tokens": self.num_tokens,
        }
        events = {"first token": self.first_token_ns} if self.first_token_ns else {}
        spans = [Span(self.trace_parent, "engine", begin_ns, end_ns, attributes, events, why)]
        if self._ledger.is_text_model:
            spans.append(Span(self.trace_parent, "preprocessing", self.arrival_ns, begin_ns))
            if self.first_token_ns:
                spans.append(Span(self.trace_parent, "postprocessing", self.first_token_ns, now_ns))
        return spans


class ResponseRecorder:
    """Records the tokens that a text model receives from `tensorrt_llm`.

    `inputs` contains the input tensors of the text model's request to `tensorrt_llm`.
    """

    def __init__(self, record: RequestRecord, inputs: Mapping[str, Array]) -> None:
        self._record = record
        lengths = inputs["input_lengths"].reshape(-1)
        record.submitted_ns = record.now_ns()
        self._prompts = [
            ids[:length] for ids, length in zip(inputs["input_ids"], lengths, strict=False)
        ]
        self._limit = int(np.max(inputs["request_output_len"]))
        self._is_streaming = bool(np.any(inputs.get("streaming", False)))
        self._num_tokens: dict[tuple[int, int], int] = {}
        record.num_prompt_tokens = int(lengths.sum())

    def record(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Record the tokens in the response tensors `outputs` and return `outputs`."""
        first_row = int(outputs["batch_index"][0, 0]) if "batch_index" in outputs else 0
        first_sequence = int(outputs["sequence_index"][0, 0]) if "sequence_index" in outputs else 0
        for row, beams in enumerate(outputs["sequence_length"], first_row):
            for sequence, length in enumerate(beams, first_sequence):
                ids = outputs["output_ids"][row - first_row, sequence - first_sequence, :length]
                self._record_sequence((row, sequence), ids)
        return outputs

    def _record_sequence(self, sequence: tuple[int, int], ids: Array) -> None:
        # Do not count the prompt. Outputs that are not streamed start with the prompt, unless the
        # request excludes it.
        prompt = self._prompts[sequence[0]] if sequence[0] < len(self._prompts) else ids[:0]
        has_prompt = not self._is_streaming and np.array_equal(ids[: len(prompt)], prompt)
        count = len(ids) - (len(prompt) if has_prompt else 0)
        if count and self._is_streaming:
            self._record.add_tokens(sequence, count)
        elif count:
            self._record.add_untimed_tokens(count)
        total = self._num_tokens[sequence] = self._num_tokens.get(sequence, 0) + count
        self._record.reached_limit = self._record.reached_limit or total >= self._limit


class RequestLedger:
    """A thread-safe ledger that counts, logs and traces the requests to one model.

    A thread publishes the counters and server metrics until `close` is called. `instance` is the
    index of the model instance. `now_ns` returns the current time in nanoseconds on the monotonic
    clock.

    `environ` contains the variables that `open_server_metrics` reads and these variables:

    - TLLM_LOG_REQUESTS: if not empty, log each request. If `prompts`, log the prompts as well.
    - TLLM_OTLP_TRACES: the URL of the collector to which spans are sent.
    """

    def __init__(
        self,
        pb_utils: Any,
        model: str,
        version: str,
        *,
        instance: int = 0,
        is_text_model: bool = False,
        environ: Mapping[str, str] = os.environ,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.counters = RequestCounters()
        setting = environ.get("TLLM_LOG_REQUESTS", "")
        self.logs_prompts = setting == "prompts"
        self.is_text_model = is_text_model
        self._is_logged = bool(setting)
        url = environ.get("TLLM_OTLP_TRACES")
        self._exporter = SpanExporter(url, model) if url else None
        self._model = model
        self.now_ns = now_ns
        self._metrics = CounterMetrics(pb_utils, {"model": model, "version": version})
        self._server = open_server_metrics(pb_utils, model, instance, environ)
        self._closing = threading.Event()
        self._publisher = threading.Thread(target=self._keep_publishing, daemon=True)
        self._publisher.start()

    def open_record(self, request: Any) -> RequestRecord:
        """Create the record for a Triton request.

        If requests are logged and the client sent no request id, the record gets a new id. Call
        this method before `execute` returns, because Triton discards the request's trace
        afterwards.
        """
        request_id = request.request_id()
        if not request_id and self._is_logged:
            request_id = uuid.uuid4().hex
        trace_parent = read_trace_parent(request) if self._exporter else ""
        return RequestRecord(self, request_id, trace_parent, self.now_ns())

    def close_record(self, record: RequestRecord, outcome: Outcome, why: str) -> None:
        """Count and log a request that has ended, and export its spans."""
        now_ns = self.now_ns()
        duration_s = (now_ns - record.arrival_ns) / 1e9
        self.counters.count(REQUESTS, 1, outcome)
        if outcome != "rejected":
            self.counters.count(PROMPT_TOKENS, record.num_prompt_tokens)
            self.counters.observe(INPUT_LENGTH, record.num_prompt_tokens)
            self.counters.observe(OUTPUT_LENGTH, record.num_tokens)
        if outcome in ("stop", "length"):
            self.counters.observe(DURATION, duration_s)
        if self._is_logged:
            write_log("I", "request", **self._log_fields(record, outcome, why, duration_s))
        if self._exporter is not None:
            for span in record.spans(now_ns, why):
                self._exporter.add(span)

    def close(self) -> None:
        """Publish the remaining counts, send the remaining spans, and stop the threads."""
        self._closing.set()
        self._publisher.join()
        self._metrics.publish(self.counters.read())
        self._metrics.close()
        if self._server is not None:
            self._server.close()
        if self._exporter is not None:
            self._exporter.close()

    def _keep_publishing(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self._metrics.publish(self.counters.read())
            if self._server is not None:
                self._server.publish()

    def _log_fields(
        self, record: RequestRecord, outcome: Outcome, why: str, duration_s: float
    ) -> dict[str, Any]:
        first_ns = record.first_token_ns
        fields: dict[str, Any] = {
            "id": record.id,
            "model": self._model,
            "outcome": outcome,
            "input_tokens": record.num_prompt_tokens,
            "output_tokens": record.num_tokens,
            "ttft_ms": round((first_ns - record.arrival_ns) / 1e6, 3) if first_ns else None,
            "duration_ms": round(duration_s * 1e3, 3),
        }
        if why:
            fields["error"] = why
        if self.logs_prompts and record.prompt is not None:
            fields["prompt"] = record.prompt
        return fields
