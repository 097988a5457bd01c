"""Send OpenTelemetry spans for requests that generate tokens or compute embeddings.

The gateway does not create spans for requests to Triton's own API (`/v2`).

The names of the `gen_ai.…` attributes are from OpenTelemetry's semantic conventions for generative
AI. Source: https://github.com/open-telemetry/semantic-conventions,
docs/registry/attributes/gen-ai.md. The conventions do not define an attribute for the time to first
token, so the span uses the name of the corresponding metric, `gen_ai.server.time_to_first_token`.
"""

from __future__ import annotations

import secrets

from trtllm_serve_cli.gateway.access.call import Call
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.gateway.telemetry.metrics import OPERATIONS, PROVIDER
from trtllm_serve_cli.runtime.telemetry.spans import (
    SERVER,
    AttributeValue,
    Span,
    SpanExporter,
    new_span_id,
)

# The value of `tllm.model` in the gateway's spans. Model spans contain the model name instead.
_NAME = "gateway"


class Tracer:
    """Traces the requests of a gateway process.

    Only requests for the paths in `OPERATIONS` are traced. A request with a valid `traceparent`
    header is traced if the header's sampled flag is set. Of the requests without a valid
    `traceparent` header, one in `rate` is traced, starting with the first.
    """

    def __init__(self, exporter: SpanExporter, rate: int = 1) -> None:
        self._exporter = exporter
        self._rate = rate
        self._num_untraced = 0

    def begin(self, call: Call) -> None:
        """Start the span of a new request if the request is selected for tracing."""
        if call.path not in OPERATIONS or not self._is_chosen(call):
            return
        call.trace_id = call.trace_id or secrets.token_hex(16)
        call.span_id = new_span_id()

    def _is_chosen(self, call: Call) -> bool:
        if call.is_sampled is not None:
            return call.is_sampled
        is_chosen = self._num_untraced == 0
        self._num_untraced = (self._num_untraced + 1) % self._rate
        return is_chosen

    def record(self, call: Call) -> None:
        """Queue the span of a finished request for the exporter to send."""
        self._exporter.add(make_span(call))

    def close(self) -> None:
        """Send the remaining spans. This method blocks."""
        self._exporter.close()


def open_tracer(config: GatewayConfig) -> Tracer | None:
    """Return a tracer, or None if tracing is disabled."""
    if config.otlp_traces is None:
        return None
    return Tracer(SpanExporter(config.otlp_traces, _NAME), config.trace_rate)


def make_span(call: Call) -> Span:
    """Return the span of a finished request."""
    operation = OPERATIONS[call.path]
    end_s = call.started_s + call.duration_s
    events = {} if call.first_token_s is None else {"first token": _nanoseconds(call.first_token_s)}
    return Span(
        f"00-{call.trace_id}-{call.parent_span_id}-01",
        f"{operation} {call.model}".rstrip(),
        # Spans use the monotonic clock, which `time.perf_counter` reads on Linux.
        _nanoseconds(call.started_s),
        _nanoseconds(end_s),
        _describe(call, operation),
        events,
        # In OpenTelemetry's HTTP conventions, client errors (4xx) do not set the error status of
        # server spans.
        call.error_type if (call.late_error or call.status) >= 500 else "",
        call.span_id,
        SERVER,
    )


def _describe(call: Call, operation: str) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": call.model or None,
        "gen_ai.usage.input_tokens": call.num_input_tokens or None,
        "gen_ai.usage.output_tokens": call.num_output_tokens if call.num_input_tokens else None,
        "gen_ai.usage.cache_read.input_tokens": call.num_cached_tokens,
        "gen_ai.response.finish_reasons": call.finish_reasons or None,
        "gen_ai.server.time_to_first_token": call.time_to_first_token_s,
        "http.request.method": call.method,
        "url.path": call.path,
        "http.response.status_code": call.status or None,
        "error.type": call.error_type or None,
        "tllm.request_id": call.request_id,
        "tllm.key": call.key_name or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
