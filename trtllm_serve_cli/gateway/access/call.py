"""Track the state of an HTTP request for limits, metrics, traces and the access log."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.types import Scope

from trtllm_serve_cli.gateway.access.keys import ApiKey
from trtllm_serve_cli.gateway.access.limits import Ticket

# Key of the `Call` in the ASGI scope.
SCOPE_KEY = "tllm.call"
# The maximum length of `Call.path`. Longer paths are truncated.
_MAX_PATH = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# A W3C `traceparent`: version, trace id, parent id, flags. Version ff and all-zero ids are invalid.
# Source: https://www.w3.org/TR/trace-context
_TRACE_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED = 1


@dataclass(slots=True)
class Call:
    """An HTTP request to the gateway and the state of its response.

    Times are from `time.perf_counter`.
    """

    request_id: str
    method: str
    path: str
    # Id of the OpenTelemetry trace that the client or the gateway started, or "".
    trace_id: str = ""
    # Id of the client's span, or "".
    parent_span_id: str = ""
    # Sampled flag of the `traceparent` header, or None if the header is missing or invalid.
    is_sampled: bool | None = None
    # Id of the gateway's span, or "" if the request is not traced.
    span_id: str = ""
    # None if the request has no valid API key.
    key: ApiKey | None = None
    # Empty until `admit` has checked that the key may use the model.
    model: str = ""
    # HTTP status, or 0 if the response has not started yet.
    status: int = 0
    # The limit that the request exceeded, "key" for a missing or invalid API key, or "".
    rejected_by: str = ""
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    started_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    # True if the whole response was sent. If it is still false after the call has ended, the client
    # disconnected or the gateway failed.
    is_complete: bool = False
    # Status of an error that occurred after the response had started, 500 for an unhandled
    # exception, or 0.
    late_error: int = 0
    ticket: Ticket | None = None

    @property
    def key_name(self) -> str:
        return "" if self.key is None else self.key.name

    @property
    def error_type(self) -> str:
        """The value of OpenTelemetry's `error.type` attribute, or "" if the request succeeded.

        The value is the error status, or "disconnected" if the response is incomplete.
        """
        if self.late_error:
            return str(self.late_error)
        if self.status >= 400:
            return str(self.status)
        return "" if self.is_complete else "disconnected"

    @property
    def duration_s(self) -> float:
        """The time in seconds from the arrival of the headers to the end of the response.

        If the response has not ended yet, the time is measured until now.
        """
        return (self.ended_s or time.perf_counter()) - self.started_s

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.started_s

    @property
    def trace_parent(self) -> str:
        """The `traceparent` value for child spans, or "" if the request is not traced."""
        return f"00-{self.trace_id}-{self.span_id}-01" if self.span_id else ""

    def add_tokens(self, count: int) -> None:
        """Count new tokens, record their arrival time, and charge them to the API key."""
        self.last_token_s = time.perf_counter()
        if self.first_token_s is None:
            self.first_token_s = self.last_token_s
        self.num_output_tokens += count
        if self.ticket is not None:
            self.ticket.use_tokens(count)

    def end(self) -> None:
        """Record the end time and release the ticket.

        Call this method after the response has ended or the client has disconnected.
        """
        self.ended_s = time.perf_counter()
        if self.ticket is not None:
            self.ticket.release()


def find_call(scope: Scope) -> Call:
    """Return the `Call` that the guard stored in the ASGI scope."""
    call: Call = scope[SCOPE_KEY]
    return call


def read_call(scope: Scope) -> Call:
    """Create the `Call` of a request from its ASGI scope."""
    request_id = trace_parent = ""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            request_id = value.decode("latin-1")
        elif name == b"traceparent":
            trace_parent = value.decode("latin-1")
    trace = _TRACE_PARENT.fullmatch(trace_parent)
    return Call(
        request_id if _REQUEST_ID.fullmatch(request_id) else f"req_{uuid.uuid4().hex}",
        scope["method"],
        # Use the raw path: it is still percent-encoded, so it cannot contain a line break.
        scope.get("raw_path", scope["path"].encode()).decode("latin-1")[:_MAX_PATH],
        *((trace[1], trace[2], bool(int(trace[3], 16) & _SAMPLED)) if trace else ()),
    )
