from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import decode_json
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.schema.messages import MessagesBody
from trtllm_serve_cli.gateway.translate.messages import convert_body

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}


def convert(**fields: Any) -> ChatBody:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "demo", "max_tokens": 5, "messages": messages, **fields}
    return convert_body(decode_json(msgspec.json.encode(body), MessagesBody))


def convert_messages(*messages: tuple[str, Any], **fields: Any) -> list[dict[str, Any]]:
    listed = [{"role": role, "content": content} for role, content in messages]
    return [msgspec.to_builtins(each) for each in convert(messages=listed, **fields).messages]


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def part(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "refusal": None}


def test_system_is_the_first_message() -> None:
    assert convert_messages(("user", "Hi"), system="S") == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
    ]
    (system, _) = convert_messages(("user", "Hi"), system=[text("a"), text("b")])
    assert system == {"role": "system", "content": [part("a"), part("b")]}
    assert len(convert_messages(("user", "Hi"), system=[])) == 1


def test_system_messages_of_the_conversation_are_kept() -> None:
    converted = convert_messages(("user", "Hi"), ("system", [text("S")]))
    assert converted[1] == {"role": "system", "content": [part("S")]}


def test_blocks_of_the_assistant_are_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {**text("a"), "cache_control": {"type": "ephemeral"}},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ]
    (_, message) = convert_messages(("user", "Hi"), ("assistant", blocks))
    calls = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": [part("a")], "reasoning_content": "hm"}
    assert [(each["id"], each["function"]) for each in calls] == [
        ("1", {"name": "f", "arguments": '{"x": 1}'}),
        ("2", {"name": "g", "arguments": "{}"}),
    ]


def test_tool_results_are_messages_in_their_order() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "r"}
    empty = {"type": "tool_result", "tool_use_id": "2"}
    parts = {"type": "tool_result", "tool_use_id": "3", "content": [text("p")], "is_error": True}
    assert convert_messages(("user", [result, empty, text("a"), text("b"), parts])) == [
        {"role": "tool", "content": "r", "tool_call_id": "1"},
        {"role": "tool", "content": "", "tool_call_id": "2"},
        {"role": "user", "content": [part("a"), part("b")]},
        {"role": "tool", "content": [part("p")], "tool_call_id": "3"},
    ]


def test_empty_content_is_an_empty_message() -> None:
    assert convert_messages(("user", [])) == [{"role": "user", "content": []}]


@pytest.mark.parametrize("content", ["{", [text("{")]])
def test_last_message_of_the_assistant_is_continued(content: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    body = convert(messages=messages)
    assert (body.continue_final_message, body.add_generation_prompt) == (True, False)
    body = convert()
    assert (body.continue_final_message, body.add_generation_prompt) == (False, True)


def test_sampling_parameters() -> None:
    body = convert(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["x"], stream=True)
    assert (body.temperature, body.top_p, body.top_k) == (0.5, 0.9, 3)
    assert (body.stop, body.stream) == (["x"], True)
    assert (body.max_tokens, body.max_completion_tokens) == (None, None)


@pytest.mark.parametrize(
    ("choice", "expected", "is_parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, {"function": {"name": "f"}, "type": "function"}, True),
    ],
)
def test_tool_choice(choice: Any, expected: Any, is_parallel: bool) -> None:
    body = convert(tools=[TOOL, {**TOOL, "type": "custom"}], tool_choice=choice)
    assert msgspec.to_builtins(body.tool_choice) == expected
    assert body.parallel_tool_calls is is_parallel
    (tool, _) = msgspec.to_builtins(body.tools)
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert tool == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("kind", "is_enabled"), [("disabled", False), ("enabled", True), ("adaptive", True)]
)
def test_thinking_is_a_variable_of_the_template(kind: str, is_enabled: bool) -> None:
    body = convert(thinking={"type": kind, "budget_tokens": 1024})
    assert body.chat_template_kwargs == {"enable_thinking": is_enabled}
    assert convert().chat_template_kwargs is None


def test_output_config() -> None:
    schema = {"type": "object"}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    body = convert(output_config=config)
    assert body.reasoning_effort == "low"
    assert body.response_format is not None
    assert body.response_format.json_schema is not None
    assert body.response_format.json_schema.schema == schema


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image' are not supported"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "'image' are not supported"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "'tool_result' are not"),
        ({"messages": [{"role": "system", "content": [RESULT]}]}, "'tool_result' are not"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "but is 'x'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text` is required"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_2025"),
        ({"tools": [{"name": "f"}]}, "`input_schema` is missing"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "`tool_choice.name` is required"),
        ({"temperature": 1.5}, "temperature"),
    ],
)
def test_unsupported_requests(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text) as raised:
        convert(**fields)
    assert raised.value.status == 400
