from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from trtllm_serve_cli.gateway.prompts.messages import convert_message
from trtllm_serve_cli.gateway.prompts.tools.described_tools import describe_tools
from trtllm_serve_cli.gateway.schema.chat import ChatMessage

TOOL = {"type": "function", "function": {"name": "f"}}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "converted"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("{a", "{a"),
        ("[1]", "[1]"),
        (r'{"\uDC00": ["\ud83d"]}', {"\ufffd": ["\ufffd"]}),
    ],
    ids=["object", "empty", "invalid", "array", "surrogates"],
)
def test_arguments_become_objects(arguments: str, converted: object) -> None:
    message = msgspec.convert(
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}, ChatMessage
    )
    function = {"name": "f", "arguments": converted}
    assert convert_message(message) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": function, "id": "c", "type": "function"}],
    }


def test_template_without_tools_gets_them_in_the_messages() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        {"role": "tool", "content": "2", "tool_call_id": "d"},
    ]
    system, *rest = describe_tools(messages, [TOOL])
    assert system["content"].startswith("Be brief.\n\nYou can call")
    assert json.dumps(TOOL) in system["content"]
    assert rest == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
        },
    ]


def test_messages_without_tools_stay_the_same() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert describe_tools(messages, None) == messages
    assert [each["role"] for each in describe_tools(messages, [TOOL])] == ["system", "user"]
