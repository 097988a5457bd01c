"""A request is traced from the client to the engine and logged with its id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Tllm
from tests.fakes.otlp_collector import ReceivedSpan, ReceivedSpans, collector
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PROMPT = "What is machine learning?"


@pytest.fixture(scope="module")
def received() -> Iterator[ReceivedSpans]:
    with collector() as started:
        yield started


@pytest.fixture
def observed(quick_home: Callable[[], Tllm], received: ReceivedSpans) -> Tllm:
    """Start a server that logs each request as JSON and sends spans to the collector."""
    tllm = quick_home()
    started = tllm.start(
        "--log-format", "json", "--log-requests", "yes",
        "--otlp-endpoint", received.url.removesuffix("/v1/traces"),
    )  # fmt: skip
    assert started.returncode == 0, started.stdout + started.stderr
    return tllm


def log_lines(tllm: Tllm, request_id: str) -> list[dict[str, Any]]:
    (log,) = (tllm.home / "servers").glob("*/server.log")
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    return [each for each in map(json.loads, lines) if each.get("id") == request_id]


def trace_of(received: ReceivedSpans, request_id: str) -> list[ReceivedSpan]:
    """Return all spans of the trace that contains the client's request."""
    spans = received.spans()
    ours = (each for each in spans if each.attributes.get("triton.request_id") == request_id)
    trace_id = next((each.trace_id for each in ours), None)
    return [each for each in spans if each.trace_id == trace_id]


def is_below(span: ReceivedSpan, root: ReceivedSpan, spans: list[ReceivedSpan]) -> bool:
    by_id = {each.id: each for each in spans}
    while span.parent_id in by_id:
        span = by_id[span.parent_id]
    return span == root


def check_followed(tllm: Tllm, received: ReceivedSpans, interface: str) -> None:
    """Check that a request over `interface` has a log line and a trace with all its parts."""
    answer = json.loads(tllm.done("infer", PROMPT, "--max-tokens", "5", "-i", interface, "--json"))
    request_id = answer["request_id"]
    wait_until(lambda: log_lines(tllm, request_id))
    (line,) = log_lines(tllm, request_id)
    assert (line["model"], line["outcome"]) == ("demo", "length")
    assert line["output_tokens"] == answer["num_output_tokens"] == 5
    assert line["input_tokens"] == answer["num_input_tokens"]
    assert 0 < line["ttft_ms"] <= line["duration_ms"]
    expected = {"InferRequest", "demo", "preprocessing", "engine", "postprocessing"}
    wait_until(lambda: expected <= {each.name for each in trace_of(received, request_id)})
    spans = trace_of(received, request_id)
    (root,) = (each for each in spans if not each.parent_id)
    assert root.name == "InferRequest"
    assert all(is_below(each, root, spans) for each in spans)
    (engine,) = (each for each in spans if each.name == "engine")
    assert engine.attributes["tllm.request_id"] == request_id
    assert engine.attributes["gen_ai.usage.output_tokens"] == "5"


def test_request_is_logged_and_traced(observed: Tllm, received: ReceivedSpans) -> None:
    check_followed(observed, received, "grpc")
    check_followed(observed, received, "http")
    (log,) = (observed.home / "servers").glob("*/server.log")
    assert PROMPT not in log.read_text()
    refused = observed("infer", PROMPT, "--max-tokens", "1000000", "--request-id", "no-1")
    assert refused.returncode == 3
    wait_until(lambda: log_lines(observed, "no-1"))
    assert log_lines(observed, "no-1")[0]["outcome"] == "rejected"
