from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import decode_json
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.schema.responses import ResponsesBody
from trtllm_serve_cli.gateway.translate.responses import convert_body

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "g"}


def convert(**fields: Any) -> ChatBody:
    body = {"model": "demo", "input": "Hi", **fields}
    return convert_body(decode_json(msgspec.json.encode(body), ResponsesBody))


def convert_input(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    messages = convert(input=list(items), **fields).messages
    return [msgspec.to_builtins(each) for each in messages]


def part(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "refusal": None}


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def called(number: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"id": f"c{number}", "type": "function", "function": function}


def test_text_is_a_message_of_the_user() -> None:
    messages = convert(instructions="S").messages
    assert [(each.role, each.content) for each in messages] == [("system", "S"), ("user", "Hi")]


def test_messages_have_text_or_parts() -> None:
    texts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer = [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    assert convert_input(
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": texts},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": answer},
        {"role": "assistant", "content": "e"},
    ) == [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [part("a"), part("b")]},
        {"role": "assistant", "content": [
            part("c"), {"type": "refusal", "text": None, "refusal": "d"},
        ]},
        {"role": "assistant", "content": "e"},
    ]  # fmt: skip


def test_reasoning_text_and_calls_of_a_turn_are_one_message() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    output = {"type": "function_call_output", "call_id": "c0", "output": "r0"}
    parts = [{"type": "input_text", "text": "r1"}]
    assert convert_input(
        {"role": "user", "content": "Hi"},
        reasoning,
        {"role": "assistant", "content": "a"},
        call(0),
        call(1),
        output,
        {"type": "function_call_output", "call_id": "c1", "output": parts},
        call(2),
    ) == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [called(0), called(1)],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "r0", "tool_call_id": "c0"},
        {"role": "tool", "content": [part("r1")], "tool_call_id": "c1"},
        {"role": "assistant", "tool_calls": [called(2)]},
    ]


def test_summary_replaces_missing_reasoning() -> None:
    summary = [{"type": "summary_text", "text": "hm"}]
    (message,) = convert_input({"type": "reasoning", "id": "r", "summary": summary})
    assert message["reasoning_content"] == "hm"


def test_parameters() -> None:
    body = convert(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=7,
        reasoning={"effort": "low"},
        parallel_tool_calls=False,
        store=True,
        include=["reasoning.encrypted_content"],
    )
    assert (body.temperature, body.top_p, body.max_completion_tokens) == (0.5, 0.9, 7)
    assert (body.reasoning_effort, body.parallel_tool_calls) == ("low", False)


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["f", "g"]),
        ({"type": "function", "name": "g"},
         {"function": {"name": "g"}, "type": "function"}, ["f", "g"]),
        ({"type": "allowed_tools", "mode": "required",
          "tools": [{"type": "function", "name": "g"}]}, "required", ["g"]),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, expected: Any, names: list[str]) -> None:
    body = convert(tools=[TOOL, OTHER], tool_choice=choice)
    assert msgspec.to_builtins(body.tool_choice) == expected
    assert [each.function.name for each in body.tools or ()] == names


def test_tools_are_functions() -> None:
    (tool,) = convert(tools=[TOOL]).tools or ()
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert msgspec.to_builtins(tool) == {"type": "function", "function": function}


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_format_without_a_schema(kind: str) -> None:
    format_ = convert(text={"format": {"type": kind}}).response_format
    assert format_ is not None
    assert (format_.type, format_.json_schema) == (kind, None)


def test_format_with_a_schema() -> None:
    schema = {"type": "object"}
    described = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    format_ = convert(text={"format": described}).response_format
    assert format_ is not None
    assert format_.json_schema is not None
    assert (format_.json_schema.name, format_.json_schema.schema) == ("x", schema)


IMAGE = {"type": "input_image", "image_url": "x"}


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"previous_response_id": "r"}, "previous_response_id", "does not store responses"),
        ({"conversation": "c"}, "conversation", "does not store conversations"),
        ({"conversation": {"id": "c"}}, "conversation", "does not store conversations"),
        ({"prompt": {"id": "p"}}, "prompt", "does not store prompts"),
        ({"background": True}, "background", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "log probabilities"),
        ({"include": ["message.output_text.logprobs"]}, "include", "log probabilities"),
        ({"input": []}, "input", "empty"),
        ({"input": [{"content": "a"}]}, "input", r"`role` is missing in `input\[0\]`"),
        ({"input": [{"role": "user"}]}, "input", r"`content` is missing in `input\[0\]`"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input", "'input_image'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "stored item"),
        ({"input": [{"type": "mcp_call"}]}, "input", "'mcp_call'"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "`call_id` is missing"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools", "not have a name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "'mcp'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "not have a name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [OTHER]}},
         "tool_choice", "'g', which is not in `tools`"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "schema` is required"),
    ],
)  # fmt: skip
def test_unsupported_requests(fields: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(ApiError, match=text) as raised:
        convert(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)
