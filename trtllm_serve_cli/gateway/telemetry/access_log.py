"""Write one line per request to the gateway's log. The lines never contain prompts or keys."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from trtllm_serve_cli.choices import LogFormat
from trtllm_serve_cli.gateway.access.call import Call

# The paths that health checks and Prometheus request every few seconds. Requests for these paths
# are logged only if they fail.
_PROBES = frozenset({"/health", "/metrics", "/ping"})


class AccessLog:
    """The access log in the format "text" or "json". `write` receives each line."""

    def __init__(self, log_format: LogFormat, write: Callable[[str], None] | None = None) -> None:
        self._format = format_json if log_format == "json" else format_text
        self._write = _write_stdout if write is None else write

    def record(self, call: Call) -> None:
        """Log a request that has ended."""
        if call.path in _PROBES and not call.error_type:
            return
        self._write(self._format(describe(call, datetime.now(timezone.utc))) + "\n")


def describe(call: Call, now: datetime) -> dict[str, Any]:
    """Return the log fields of a request. Fields with empty values are omitted."""
    fields = {
        "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def format_json(fields: Mapping[str, Any]) -> str:
    """Return a line with the fields as a JSON object."""
    return json.dumps(fields)


def format_text(fields: Mapping[str, Any]) -> str:
    """Return a line with the time, the request and the status, and then name=value pairs."""
    rest = dict(fields)
    start = [rest.pop(name, "-") for name in ("time", "method", "path", "status")]
    words = [*start, *(f"{name}={value}" for name, value in rest.items())]
    return " ".join(_printable(str(word)) for word in words)


def _printable(word: str) -> str:
    """Escape unprintable characters, which could forge log lines or control a terminal."""
    return word if word.isprintable() else ascii(word)[1:-1]


def _write_stdout(line: str) -> None:
    # Write the line with one system call, so that the lines of several gateway processes are not
    # mixed. Ignore errors, because a full disk must not stop the gateway.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode())
