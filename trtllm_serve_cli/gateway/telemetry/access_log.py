"""Write one line per request to the gateway's log, except for successful probes.

Probes are requests from health checks and Prometheus. The lines contain API key names, but never
keys or prompts. When a model becomes ready, the gateway also logs the duration of each startup
stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

import psutil

from trtllm_serve_cli.choices import LogFormat
from trtllm_serve_cli.gateway.access.call import Call
from trtllm_serve_cli.runtime.stages import GATEWAY_READY, stage_fields

# Paths that health checks and Prometheus request every few seconds. Only failed requests to these
# paths are logged.
_PROBES = frozenset({"/health", "/metrics", "/ping"})


class AccessLog:
    """The access log, in text or JSON format.

    `write` is called with each line. By default, the lines are written to standard output.
    """

    def __init__(self, log_format: LogFormat, write: Callable[[str], None] | None = None) -> None:
        self._is_json = log_format == "json"
        self._write = _write_stdout if write is None else write

    def record(self, call: Call) -> None:
        """Log a finished request, unless its path is in `_PROBES` and it succeeded."""
        if call.path in _PROBES and not call.error_type:
            return
        fields = describe(call, datetime.now(timezone.utc))
        self._write((format_json(fields) if self._is_json else format_text(fields)) + "\n")

    def record_start(self, model: str, stages_s: Mapping[str, float]) -> None:
        """Log that this process can serve `model`, with the duration of each startup stage."""
        started_at = psutil.Process().create_time()
        start_program_s = time.time() - started_at - sum(stages_s.values())
        stages = stage_fields(started_at, {"start_program": start_program_s, **stages_s})
        self._record_event({"message": GATEWAY_READY, "model": model, **stages})

    def record_refusal(self, model: str, why: str) -> None:
        """Log why the gateway cannot serve `model`."""
        self.record_warning(f"The gateway cannot serve the model {model}, because {why}.")

    def record_waiting(self, model: str, why: str) -> None:
        """Log why the gateway cannot serve `model` yet."""
        self.record_warning(f"The model {model} is not ready ({why}). The gateway tries again.")

    def record_warning(self, message: str) -> None:
        """Log a warning for the operator."""
        self._record_event(
            {"level": "warning", "message": message}
            if self._is_json
            else {"message": f"Warning: {message}"}
        )

    def _record_event(self, fields: Mapping[str, Any]) -> None:
        fields = {"time": _format_time(datetime.now(timezone.utc)), **fields}
        self._write((format_json(fields) if self._is_json else _format_event(fields)) + "\n")


def describe(call: Call, now: datetime) -> dict[str, Any]:
    """Return the log fields of a request. Fields with empty values are omitted."""
    fields = {
        "time": _format_time(now),
        "request_id": call.request_id,
        "key": call.key_name,
        "method": call.method,
        "path": call.path,
        "status": call.status or 499,
        "model": call.model,
        "prompt_tokens": call.num_input_tokens or None,
        "output_tokens": call.num_output_tokens if call.model else None,
        "duration_ms": _milliseconds(call.duration_s),
        "ttft_ms": _milliseconds(call.time_to_first_token_s),
        "error": call.error_type,
        "rejected_by": call.rejected_by,
        "trace_id": call.trace_id,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def format_json(fields: Mapping[str, Any]) -> str:
    """Return the fields as a line of JSON."""
    return json.dumps(fields)


def format_text(fields: Mapping[str, Any]) -> str:
    """Return the fields as a line: time, method, path and status, followed by name=value pairs."""
    rest = dict(fields)
    start = [rest.pop(name, "-") for name in ("time", "method", "path", "status")]
    return _join(start, rest)


def _format_event(fields: Mapping[str, Any]) -> str:
    rest = dict(fields)
    return _join([rest.pop("time"), rest.pop("message")], rest)


def _join(start: Iterable[Any], fields: Mapping[str, Any]) -> str:
    words = [*start, *(f"{name}={value}" for name, value in fields.items())]
    return " ".join(_printable(str(word)) for word in words)


def _printable(word: str) -> str:
    """Escape unprintable characters, which could forge log lines or control a terminal."""
    return word if word.isprintable() else ascii(word)[1:-1]


def _write_stdout(line: str) -> None:
    # Write the line with one system call, so that lines of several gateway processes do not
    # interleave. Ignore errors, because a full disk must not stop the gateway.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode())
