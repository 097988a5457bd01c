"""A request is traced from the client to the engine and logged with its id."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.e2e.conftest import TLLM, Tllm
from tests.fakes.otlp_collector import ReceivedSpan, ReceivedSpans, collector
from tests.ports import free_ports
from tests.waiting import wait_until

PROMPT = "What is machine learning?"
# The id of the client's span.
CLIENT_SPAN = "c" * 16


@pytest.fixture(scope="module")
def received() -> Iterator[ReceivedSpans]:
    with collector() as started:
        yield started


@pytest.fixture
def observed(light_home: Callable[[], Tllm], received: ReceivedSpans) -> Tllm:
    """Start a server that logs each request as JSON and sends spans to the collector."""
    tllm = light_home()
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


def chat(url: str, trace_id: str) -> None:
    """Send a chat completion of 5 tokens as part of the trace."""
    body = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    headers = {
        "content-type": "application/json",
        "traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01",
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 5


def spans_of(received: ReceivedSpans, trace_id: str) -> dict[str, ReceivedSpan]:
    return {each.name: each for each in received.spans() if each.trace_id == trace_id}


def test_chat_is_traced_from_the_client_to_the_engine(
    light_home: Callable[[], Tllm], received: ReceivedSpans
) -> None:
    tllm = light_home()
    collector_url = received.url.removesuffix("/v1/traces")
    port, other_port = free_ports(2)
    started = tllm.start("--openai", f"--openai-port={port}", "--otlp-endpoint", collector_url)
    assert started.returncode == 0, started.stdout + started.stderr

    trace_id = os.urandom(16).hex()
    chat(tllm.status()["openai"], trace_id)
    expected = {"chat demo", "engine", "queue", "prefill", "decode"}
    wait_until(lambda: expected <= spans_of(received, trace_id).keys())
    spans = spans_of(received, trace_id)
    server, engine = spans["chat demo"], spans["engine"]
    parents = {name: span.parent_id for name, span in spans.items()}
    parts = dict.fromkeys(("queue", "prefill", "decode"), engine.id)
    assert parents == {"chat demo": CLIENT_SPAN, "engine": server.id, **parts}
    for span in (server, engine):
        assert span.attributes["gen_ai.usage.output_tokens"] == "5"

    # A gateway elsewhere sends its requests through Triton, which continues the trace. Several
    # requests, because Triton ignores the `traceparent` of some: see docs/decisions/triton-2.51.md.
    with gateway_of(tllm, other_port, collector_url) as url:
        trace_ids = [os.urandom(16).hex() for _ in range(10)]
        for trace_id in trace_ids:
            chat(url, trace_id)
        wait_until(lambda: joined(received, trace_ids))
    spans = joined(received, trace_ids)[0]
    assert spans["InferRequest"].parent_id == spans["chat demo"].id


def joined(received: ReceivedSpans, trace_ids: Sequence[str]) -> list[dict[str, ReceivedSpan]]:
    """Return the spans of each trace that contains spans of both the gateway and Triton."""
    traces = [spans_of(received, trace_id) for trace_id in trace_ids]
    return [spans for spans in traces if {"chat demo", "InferRequest"} <= spans.keys()]


@contextlib.contextmanager
def gateway_of(tllm: Tllm, port: int, collector_url: str) -> Iterator[str]:
    """Run `tllm gateway` for the server, and yield its URL when it is ready."""
    url = f"http://127.0.0.1:{port}"
    command = (
        TLLM, "gateway", "-u", tllm.status()["grpc"], "-m", "demo", "--port", str(port),
        "--otlp-endpoint", collector_url,
    )  # fmt: skip
    process = subprocess.Popen(command, env=tllm.environ, stderr=subprocess.DEVNULL)

    def is_ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
        return False

    try:
        wait_until(is_ready, timeout_s=60)
        yield url
    finally:
        process.terminate()
        process.wait(60)
