from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.choices import LogFormat
from trtllm_serve_cli.gateway.access.call import read_call
from trtllm_serve_cli.gateway.telemetry.access_log import AccessLog, describe
from trtllm_serve_cli.launch.logs.start_lines import read_start_lines
from trtllm_serve_cli.runtime.stages import GATEWAY_READY

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def make_scope(path: bytes = b"/v1/completions", **headers: bytes) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {"method": "POST", "path": "/", "raw_path": path, "headers": pairs}


def log_lines(scope: dict[str, Any], log_format: LogFormat, status: int = 200) -> list[str]:
    lines: list[str] = []
    call = read_call(scope)
    call.status, call.is_complete = status, True
    AccessLog(log_format, lines.append).record(call)
    return lines


def test_fields_of_a_request() -> None:
    call = read_call(make_scope(x_request_id=b"id1", traceparent=TRACE))
    call.model, call.status, call.is_complete = "demo", 200, True
    call.num_input_tokens, call.num_output_tokens = 3, 4
    call.started_s, call.first_token_s, call.ended_s = 1.0, 1.02, 2.5
    assert describe(call, NOW) == {
        "time": "2026-01-02T03:04:05.678Z",
        "request_id": "id1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "model": "demo",
        "prompt_tokens": 3,
        "output_tokens": 4,
        "duration_ms": 1500.0,
        "ttft_ms": 20.0,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_start_is_logged_with_its_stages(log_format: LogFormat) -> None:
    lines: list[str] = []
    AccessLog(log_format, lines.append).record_start("demo", {"load_tokenizer": 0.5})
    (start,) = read_start_lines(lines, GATEWAY_READY)
    assert (start.model, list(start.stages_s)) == ("demo", ["start program", "load tokenizer"])


def test_model_that_cannot_be_served_is_logged() -> None:
    lines: list[str] = []
    AccessLog("text", lines.append).record_refusal("demo", "its tokenizer cannot be loaded")
    (line,) = lines
    assert line.endswith(
        " Warning: The gateway cannot serve the model demo, because its tokenizer cannot be loaded."
        "\n"
    )


def test_model_that_is_not_ready_is_logged() -> None:
    lines: list[str] = []
    AccessLog("text", lines.append).record_waiting("demo", "no server responds")
    assert lines[0].endswith(
        " Warning: The model demo is not ready (no server responds). The gateway tries again.\n"
    )


def test_disconnected_client_has_the_status_499() -> None:
    call = read_call(make_scope())
    fields = describe(call, NOW)
    assert (fields["status"], fields["error"]) == (499, "disconnected")


def test_invalid_trace_is_ignored() -> None:
    assert read_call(make_scope(traceparent=TRACE + b"x")).trace_id == ""


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_clients_cannot_forge_lines(path: bytes, request_id: bytes, trace: bytes) -> None:
    scope = make_scope(path, x_request_id=request_id, traceparent=trace)
    (text,), (line,) = log_lines(scope, "text"), log_lines(scope, "json")
    assert text.endswith("\n")
    assert text[:-1].isprintable()
    assert line.count("\n") == 1
    assert json.loads(line)["method"] == "POST"


def test_successful_probes_are_not_logged() -> None:
    assert log_lines(make_scope(b"/health"), "text") == []
    assert len(log_lines(make_scope(b"/health"), "text", 503)) == 1
