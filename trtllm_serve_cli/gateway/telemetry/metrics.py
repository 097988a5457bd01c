"""Collect Prometheus metrics about the gateway's requests.

The names, attributes and buckets of the `gen_ai_server_…` families are from OpenTelemetry's
semantic conventions for generative AI model servers. Source:
https://github.com/open-telemetry/semantic-conventions, docs/gen-ai/gen-ai-metrics.md at 01d94504.
The gateway adds the label `key`, which contains the API key name. Following Prometheus conventions,
the metric names use underscores instead of dots and end with the unit. OpenTelemetry defines token
counts only for clients, so the gateway uses its own family, `tllm_gateway_tokens`.

With several gateway processes, prometheus_client stores each process's values in the folder that
PROMETHEUS_MULTIPROC_DIR specifies, so each process can report the sums over all processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from trtllm_serve_cli.gateway.access.call import Call
from trtllm_serve_cli.gateway.access.limits import Limits
from trtllm_serve_cli.runtime.telemetry.families import (
    SERVER_HANGS,
    SERVER_READY,
    SERVER_RESTARTS,
)
from trtllm_serve_cli.runtime.telemetry.server_status import read_server_status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
PROVIDER = "tllm"
_SHARE_PERIOD_S = 1.0
# Maps paths to values of `gen_ai.operation.name`.
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
# The value of `gen_ai.operation.name` for requests that the gateway forwards to Triton.
_TRITON_OPERATION = "kserve"
# Paths whose requests use only the tokenizer and are not counted as operations.
_TOKENIZER_PATHS = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
_DURATION_BUCKETS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_PER_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "key")


class _ServerCollector(Collector):
    """Collects the supervisor's metrics for the server with the state folder `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        if (status := read_server_status(self._directory)) is None:
            return
        for collected, family, value in (
            (GaugeMetricFamily, SERVER_READY, status.is_ready),
            (CounterMetricFamily, SERVER_HANGS, status.num_hangs),
            (CounterMetricFamily, SERVER_RESTARTS, status.num_restarts),
        ):
            yield collected(family.name, family.help, value=value)


class Metrics:
    """The metrics of a gateway process.

    `server_directory` is the state folder of the server that `tllm start` supervises together with
    the gateway, or None for a standalone gateway.
    """

    def __init__(self, limits: Limits, server_directory: Path | None = None) -> None:
        self._limits = limits
        self._registry = CollectorRegistry()
        self._server = None if server_directory is None else _ServerCollector(server_directory)
        if self._server is not None and MULTIPROCESS_FOLDER not in os.environ:
            self._registry.register(self._server)
        self._durations = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from the request to the last byte of the response.",
            (*_LABELS, "error_type"),
            buckets=_DURATION_BUCKETS,
            registry=self._registry,
        )
        self._first_tokens = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from the request to the first generated token.",
            _LABELS,
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=self._registry,
        )
        self._per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per generated token of a request, excluding the first token.",
            _LABELS,
            buckets=_PER_TOKEN_BUCKETS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "tllm_gateway_tokens",
            "Prompt tokens (input) and generated tokens (output).",
            ("gen_ai_token_type", "gen_ai_request_model", "key"),
            registry=self._registry,
        )
        self._responses = Counter(
            "tllm_gateway_http_responses",
            "HTTP responses. The status is 499 if the client disconnected before the response.",
            ("status",),
            registry=self._registry,
        )
        self._rejected = Counter(
            "tllm_gateway_rejected_requests",
            "Requests rejected because of a limit, or because the API key was missing or invalid.",
            ("reason", "key"),
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "tllm_gateway_requests_in_flight",
            "Requests that are running.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._waiting = Gauge(
            "tllm_gateway_requests_waiting",
            "Requests in the gateway's queue.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        if MULTIPROCESS_FOLDER not in os.environ:
            self._in_flight.set_function(lambda: limits.num_in_flight)
            self._waiting.set_function(lambda: limits.num_waiting)

    def observe(self, call: Call) -> None:
        """Record a finished request."""
        self._responses.labels(str(call.status or 499)).inc()
        if call.rejected_by:
            self._rejected.labels(call.rejected_by, call.key_name).inc()
        elif call.model and call.path not in _TOKENIZER_PATHS:
            self._observe_generation(call)

    def _observe_generation(self, call: Call) -> None:
        operation = OPERATIONS.get(call.path, _TRITON_OPERATION)
        labels = (operation, PROVIDER, call.model, call.key_name)
        self._durations.labels(*labels, call.error_type).observe(call.duration_s)
        self._tokens.labels("input", call.model, call.key_name).inc(call.num_input_tokens)
        self._tokens.labels("output", call.model, call.key_name).inc(call.num_output_tokens)
        if call.error_type or call.first_token_s is None or call.last_token_s is None:
            return
        self._first_tokens.labels(*labels).observe(call.first_token_s - call.started_s)
        if call.num_output_tokens > 1:
            decoding_s = call.last_token_s - call.first_token_s
            self._per_token.labels(*labels).observe(decoding_s / (call.num_output_tokens - 1))

    async def share_gauges(self) -> None:
        """Update the gauges for running and waiting requests once per second.

        The other gateway processes read the stored values when they report metrics. With a single
        process, return immediately.
        """
        while MULTIPROCESS_FOLDER in os.environ:
            self._update_gauges()
            await asyncio.sleep(_SHARE_PERIOD_S)

    def _update_gauges(self) -> None:
        self._in_flight.set(self._limits.num_in_flight)
        self._waiting.set(self._limits.num_waiting)

    def render(self) -> bytes:
        """Return the metrics of all gateway processes in Prometheus's text format."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        self._update_gauges()
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        if self._server is not None:
            merged.register(self._server)
        return generate_latest(merged)
