"""Requests that OpenAI's API rejects, and similar requests of real clients, which are served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, fail, make_client, read_events
from trtllm_serve_cli.client.model_info import ModelInfo

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
USER = {"role": "user", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
SCHEMA = {"name": "answer", "schema": {"type": "object"}}


def chat(*messages: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": messages or [USER], **fields}


def name_tool(name: str) -> tuple[str, dict[str, Any]]:
    return chat(tools=[{"type": "function", "function": {"name": name}}])


def format_as(**json_schema: Any) -> tuple[str, dict[str, Any]]:
    return chat(response_format={"type": "json_schema", "json_schema": json_schema})


def format_response(**fields: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": "Hi", "text": {"format": {"type": "json_schema", **fields}}}


REJECTED: dict[str, tuple[tuple[str, dict[str, Any]], str]] = {
    "user without content": (chat({"role": "user"}), "messages[0].content"),
    "user with null": (chat({"role": "user", "content": None}), "messages[0].content"),
    "user with no parts": (chat({"role": "user", "content": []}), "messages[0].content"),
    "system with null": (chat({"role": "system", "content": None}, USER), "messages[0].content"),
    "part without text": (chat({"role": "user", "content": [{"type": "text"}]}), "messages"),
    "assistant with null": (
        chat(USER, {"role": "assistant", "content": None}),
        "messages[1].content",
    ),
    "assistant with no calls": (
        chat(USER, {"role": "assistant", "content": None, "tool_calls": []}),
        "messages[1].content",
    ),
    "tool result without id": (
        chat(USER, {"role": "tool", "content": "noon"}),
        "messages[1].tool_call_id",
    ),
    "tool result without content": (
        chat(USER, {"role": "tool", "tool_call_id": "call_1"}),
        "messages[1].content",
    ),
    "17 stops": (chat(stop=["a"] * 17), "stop"),
    "name with a space": (name_tool("a b!"), "tools[0].function.name"),
    "name with a line break": (name_tool("a\n"), "tools[0].function.name"),
    "long name": (name_tool("a" * 65), "tools[0].function.name"),
    "empty name": (name_tool(""), "tools[0].function.name"),
    "schema without name": (
        format_as(schema={"type": "object"}),
        "response_format.json_schema.name",
    ),
    "name without schema": (format_as(name="answer"), "response_format.json_schema.schema"),
    "schema with an invalid name": (
        format_as(name="an answer", schema={}),
        "response_format.json_schema.name",
    ),
    "text format without name": (format_response(schema={}), "text.format"),
    "text format without schema": (format_response(name="answer"), "text.format"),
    "17 keys of metadata": (chat(metadata={str(each): "a" for each in range(17)}), "metadata"),
    "long value of metadata": (chat(metadata={"a": "b" * 513}), "metadata"),
    "bias": (chat(logit_bias={"1": 101}), "logit_bias"),
    "parallel calls without tools": (chat(parallel_tool_calls=True), "parallel_tool_calls"),
    "tokenize null": (("/tokenize", {"messages": [{"role": "user"}]}), "messages[0].content"),
}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "empty text": chat({"role": "user", "content": ""}),
    "parts": chat({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
    # OpenAI's client returns null with calls, and LangChain sends an empty text.
    "null with calls": chat(
        USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT
    ),
    "empty text with calls": chat(
        USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT
    ),
    "no content with calls": chat(USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT),
    "result in parts": chat(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {**RESULT, "content": [{"type": "text", "text": "noon"}]},
    ),
    "refusal": chat(USER, {"role": "assistant", "content": None, "refusal": "No."}, USER),
    # The gateway's own response, if it ended during the reasoning.
    "only reasoning": chat(
        USER, {"role": "assistant", "content": None, "reasoning_content": "Hm"}, USER
    ),
    "16 stops": chat(stop=["z"] * 16),
    "tool": chat(tools=[TOOL], parallel_tool_calls=False, tool_choice="none"),
    "schema": format_as(**SCHEMA, strict=True),
    "metadata": chat(metadata={str(each): "a" for each in range(16)}),
    # Clients send this without tools, because it is a default of OpenAI's Responses API.
    "parallel calls of a response": (RESPONSES, {"input": "Hi", "parallel_tool_calls": True}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_request_is_rejected_as_by_openai(name: str) -> None:
    (path, body), param = REJECTED[name]
    with make_client(FakeBackend()) as client:
        response = client.post(path, json={"model": "demo", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split("[")[0].split(".")[0] in error["message"] or param == "messages"


DEEP = {"enum": json.loads("[" * 700 + "]" * 700)}
DEEP_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": chat(
        tools=[{"type": "function", "function": {"name": "f", "parameters": DEEP}}],
        tool_choice="required",
    ),
    "messages": (
        MESSAGES,
        {
            "max_tokens": 5,
            "messages": [USER],
            "tools": [{"name": "f", "input_schema": DEEP}],
            "tool_choice": {"type": "any"},
        },
    ),
    "responses": (
        RESPONSES,
        {
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "parameters": DEEP}],
            "tool_choice": "required",
        },
    ),
}


@pytest.mark.parametrize("length", [1, 10_000])
@pytest.mark.parametrize("name", DEEP_TOOLS)
def test_deep_schema_is_rejected(name: str, length: int) -> None:
    """A long request is processed in a thread. The maximum depth depends on Python's version."""
    path, body = DEEP_TOOLS[name]
    with make_client(FakeBackend()) as client:
        response = client.post(path, json={"model": "demo", **body, "x": "y" * length})
    assert response.status_code == 400


GUIDE = "guided_decoding_guide cannot be used: Unsupported type"
NO_SCORES = "The openvino engine kind does not support {} with prompt log probabilities."
REFUSED_BY_THE_ENGINE: dict[str, tuple[tuple[str, dict[str, Any]], str, str]] = {
    "schema": (format_as(**SCHEMA), GUIDE, "response_format"),
    "regex": (chat(guided_regex="("), GUIDE, "guided_regex"),
    "tool": (chat(tools=[TOOL], tool_choice="required"), GUIDE, "tools"),
    "text format": (format_response(**SCHEMA), GUIDE, "text.format"),
    "top_k": (chat(top_k=10**6), "runtime_top_k is 1000000; it must be below 9", "top_k"),
    "n": (chat(n=99), "num_return_sequences is 99; it must be below 9", "n"),
    "best_of": (
        (COMPLETIONS, {"best_of": 99}),
        "num_return_sequences is 99; it must be below 9",
        "best_of",
    ),
    "max_tokens": ((COMPLETIONS, {}), NO_SCORES.format("max_tokens above 1"), "max_tokens"),
    "temperature": ((COMPLETIONS, {}), NO_SCORES.format("a temperature above 0"), "temperature"),
}


@pytest.mark.parametrize("name", REFUSED_BY_THE_ENGINE)
def test_error_of_the_engine_names_the_parameter(name: str) -> None:
    (path, body), why, param = REFUSED_BY_THE_ENGINE[name]
    info = ModelInfo("demo", max_seq_len=2000, engine_kind="openvino")
    with make_client(FakeBackend(fail(why, rejected=True)), info=info) as client:
        response = client.post(path, json={"model": "demo", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param in error["message"]
    assert "guided_decoding_guide" not in error["message"] and "_return_" not in error["message"]
    assert (error["code"] == "unsupported_parameter") == why.startswith("The openvino")


@pytest.mark.parametrize("name", SERVED)
def test_request_of_real_clients_is_served(name: str) -> None:
    path, body = SERVED[name]
    with make_client(FakeBackend()) as client:
        response = client.post(path, json={"model": "demo", **body})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "body"), [chat(), (COMPLETIONS, {"prompt": "Hi"})])
def test_usage_can_be_part_of_each_chunk(path: str, body: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with make_client(FakeBackend()) as client:
        text = client.post(
            path, json={"model": "demo", **body, "stream": True, "stream_options": options, "n": 2}
        ).text
    *chunks, last, _ = read_events(text)
    counts: dict[int, list[int]] = {0: [], 1: []}
    for chunk in map(json.loads, chunks):
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        counts[chunk["choices"][0]["index"]].append(usage["completion_tokens"])
    # The last chunk of a choice has its finish reason and no new token.
    assert all(sorted(each) == each and each[-1] == len("Hello!") for each in counts.values())
    assert json.loads(last)["usage"]["completion_tokens"] == 2 * len("Hello!")


def test_usage_of_chunks_requires_include_usage() -> None:
    options = {"continuous_usage_stats": True}
    path, body = chat(stream=True, stream_options=options)
    with make_client(FakeBackend()) as client:
        text = client.post(path, json={"model": "demo", **body}).text
    assert all("usage" not in json.loads(event) for event in read_events(text)[:-1])
