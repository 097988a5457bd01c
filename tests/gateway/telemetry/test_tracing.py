"""Spans of requests to a gateway with a fake engine, received by a fake collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.otlp_collector import ReceivedSpan, ReceivedSpans, collector
from tests.gateway.fakes import FakeBackend, fail, generates, make_client
from trtllm_serve_cli.gateway.access.call import read_call
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.telemetry.tracing import make_span

TRACE_ID, PARENT_ID = "a" * 32, "b" * 16
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def received() -> Iterator[ReceivedSpans]:
    with collector() as started:
        yield started


def send(
    client: TestClient, path: str = "/v1/chat/completions", flags: str = "", **fields: Any
) -> int:
    """Send a chat completion, with a `traceparent` if `flags` are set, and return the status."""
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-{flags}"} if flags else {}
    return client.post(path, json={**BODY, **fields}, headers=headers).status_code


def traced(
    received: ReceivedSpans,
    backend: FakeBackend,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TestClient:
    """Return a client. The gateway sends its spans when the client's context ends."""
    return make_client(backend, {"otlp_traces": received.url, **(config or {})}, **changes)


def only(received: ReceivedSpans) -> ReceivedSpan:
    (span,) = received.spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_span_continues_the_trace_of_the_client(received: ReceivedSpans, stream: bool) -> None:
    backend = FakeBackend()
    with traced(received, backend) as client:
        assert send(client, flags="01", stream=stream) == 200
    span = only(received)
    assert (span.name, span.trace_id, span.parent_id) == ("chat demo", TRACE_ID, PARENT_ID)
    assert backend.submitted[0]["trace_parent"] == f"00-{TRACE_ID}-{span.id}-01"
    seconds = float(span.attributes.pop("gen_ai.server.time_to_first_token"))
    assert 0 < seconds < 60
    assert span.attributes.pop("tllm.request_id").startswith("req_")
    (reasons,) = (
        each["value"]["arrayValue"]["values"]
        for each in raw(received)["attributes"]
        if each["key"] == "gen_ai.response.finish_reasons"
    )
    assert reasons == [{"stringValue": "stop"}]
    span.attributes.pop("gen_ai.response.finish_reasons")
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tllm",
        "gen_ai.request.model": "demo",
        "gen_ai.usage.input_tokens": str(len("user: Hi\nassistant: ")),
        "gen_ai.usage.output_tokens": "6",
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": "200",
    }
    assert [event["name"] for event in raw(received)["events"]] == ["first token"]
    assert (raw(received)["kind"], raw(received)["status"]) == (2, {})


def raw(received: ReceivedSpans) -> dict[str, Any]:
    return dict(received.messages[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0])


def test_client_decides_whether_its_trace_is_recorded(received: ReceivedSpans) -> None:
    backend = FakeBackend()
    with traced(received, backend) as client:
        assert send(client, flags="00") == 200
        assert "trace_parent" not in backend.submitted[0]
    assert received.messages == []


def test_request_without_a_trace_starts_one(received: ReceivedSpans) -> None:
    with traced(received, FakeBackend(), {"trace_rate": 3}) as client:
        assert [send(client) for _ in range(4)] == [200] * 4
    first, fourth = received.spans()
    assert first.trace_id != fourth.trace_id
    assert (first.parent_id, fourth.parent_id) == ("", "")


_MESSAGES = [{"role": "user", "content": "Hi"}]
# Maps each path to a request with a tool, and the reason of a response that calls it.
TOOL_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (
        {"messages": _MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "tool_calls",
    ),
    "/v1/messages": (
        {
            "messages": _MESSAGES,
            "max_tokens": 99,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        },
        "tool_use",
    ),
    "/v1/responses": (
        {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
        "tool_calls",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", TOOL_BODIES)
def test_tool_calls_are_the_reason_of_the_response(
    received: ReceivedSpans, path: str, stream: bool
) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    template = ChatTemplate("{{ tools }}{{ messages }}<tool_call>")
    backend = FakeBackend(generates(call))
    with traced(received, backend, template=template) as client:
        body, reason = TOOL_BODIES[path]
        assert (
            client.post(path, json={**body, "model": "demo", "stream": stream}).status_code == 200
        )
    assert reasons_of(received) == [reason]


@pytest.mark.parametrize("path", TOOL_BODIES)
def test_token_limit_is_the_reason_of_the_response(received: ReceivedSpans, path: str) -> None:
    limits = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
    name = limits.get(path, "max_tokens")
    body = {**TOOL_BODIES[path][0], "model": "demo", name: 16}
    body.pop("tools")
    with traced(received, FakeBackend(generates("x" * 99))) as client:
        assert client.post(path, json=body).status_code == 200
    assert reasons_of(received) == ["max_tokens" if path == "/v1/messages" else "length"]


def reasons_of(received: ReceivedSpans) -> list[str]:
    values = {each["key"]: each["value"] for each in raw(received)["attributes"]}
    reasons = values["gen_ai.response.finish_reasons"]["arrayValue"]["values"]
    return [each["stringValue"] for each in reasons]


@pytest.mark.parametrize(
    ("reply", "path", "status", "is_error"),
    [
        (fail("no memory"), "/v1/chat/completions", 500, True),
        (generates("Hi"), "/v1/embeddings", 400, False),
    ],
)
def test_errors_of_the_server_are_errors_of_the_span(
    received: ReceivedSpans, reply: Any, path: str, status: int, is_error: bool
) -> None:
    with traced(received, FakeBackend(reply)) as client:
        assert send(client, path) == status
    assert only(received).attributes["error.type"] == str(status)
    assert bool(raw(received)["status"]) == is_error


def test_rejected_request_has_a_span_without_a_model(
    received: ReceivedSpans, tmp_path: Path
) -> None:
    keys = {"keys_file": str(tmp_path / "keys.json"), "key_policy": "on"}
    with traced(received, FakeBackend(), keys) as client:
        assert send(client) == 401
    span = only(received)
    assert (span.name, span.attributes["error.type"]) == ("chat", "401")


def test_only_requests_that_generate_tokens_are_traced(received: ReceivedSpans) -> None:
    with traced(received, FakeBackend()) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 200
    assert received.messages == []


def test_stream_that_fails_midway_is_an_error() -> None:
    scope = {"method": "POST", "path": "/", "raw_path": b"/v1/completions", "headers": []}
    call = read_call(scope)
    call.status, call.late_error, call.trace_id, call.span_id = 200, 503, TRACE_ID, PARENT_ID
    assert make_span(call).failure == "503"
