from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.http import decode_json
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.schema.messages import MessagesBody

MESSAGE = {"role": "user", "content": "Hi"}
BODY = {"model": "m", "messages": [MESSAGE]}


def refuse(data: bytes, kind: type[msgspec.Struct] = ChatBody) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as raised:
        decode_json(data, kind)
    assert raised.value.status == 400
    return raised.value.param, raised.value.message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": [{"content": "a"}]}, "messages[0].role", "is required."),
        (
            {"messages": [MESSAGE, {"role": "usr"}]},
            "messages[1].role",
            "must be 'assistant', 'developer', 'function', 'system', 'tool' or 'user', "
            "but is 'usr'.",
        ),
        (
            {"tool_choice": "x"},
            "tool_choice",
            "must be 'auto', 'none' or 'required', but is 'x'.",
        ),
        (
            {"tool_choice": {"type": "x"}},
            "tool_choice.type",
            "must be 'function' or 'allowed_tools', but is 'x'.",
        ),
        (
            {"tools": [{"type": "x", "function": {"name": "f"}}]},
            "tools[0].type",
            "must be 'function', but is 'x'.",
        ),
        ({"messages": "x"}, "messages", "must be an array, but is a string."),
        ({"n": 1.5}, "n", "must be an integer, but is a number."),
        ({"stop": 5}, "stop", "must be a string or an array, but is an integer."),
        ({"temperature": 5}, "temperature", "must be at most 2."),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be greater than 0."),
        ({"repetition_penalty": 1e39}, "repetition_penalty", "must be at most 10000."),
        ({"top_k": 2**31}, "top_k", "must be at most 2147483647."),
        ({"min_tokens": 2**31}, "min_tokens", "must be at most 2147483647."),
        ({"messages": []}, "messages", "must have a length of at least 1."),
    ],
)
def test_error_names_the_field_and_the_accepted_values(
    fields: dict[str, Any], param: str, message: str
) -> None:
    data = msgspec.json.encode({**BODY, **fields})
    assert refuse(data) == (param, f"`{param}` {message}")


def test_messages_have_the_same_maximum_of_top_k() -> None:
    body = {**BODY, "max_tokens": 1, "top_k": 2**31}
    param, message = refuse(msgspec.json.encode(body), MessagesBody)
    assert (param, message) == ("top_k", "`top_k` must be at most 2147483647.")


def test_error_of_a_value_in_an_object_names_the_object() -> None:
    param, message = refuse(msgspec.json.encode({**BODY, "logit_bias": {"1": "x"}}))
    assert param == "logit_bias"
    assert message == "`logit_bias[...]` must be a number, but is a string."


def test_error_lists_the_tags_of_a_block() -> None:
    blocks = [{"role": "user", "content": [{"type": "x"}]}]
    data = msgspec.json.encode({"model": "m", "max_tokens": 1, "messages": blocks})
    param, message = refuse(data, MessagesBody)
    assert param == "messages[0].content[0].type"
    assert message.startswith(f"`{param}` must be 'text', ")
    assert message.endswith("but is 'x'.")


class _Values(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern="^a")] = "a"
    by_key: dict[str, list[Literal["a"]]] = {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"name": "b"}', "`name` must match the regular expression ^a."),
        (b'{"by_key": {"k": ["b"]}}', "`by_key[...][0]` must be 'a', but is 'b'."),
        (b"[]", "The request body must be an object, but is an array."),
        (b"", "The request body is empty. Send a JSON object."),
        (b" \n", "The request body is empty. Send a JSON object."),
        (b'{"name": ', "The request body is not valid JSON: it is incomplete."),
        (b'{"name":}', "The request body is not valid JSON: invalid character (byte 8)."),
    ],
)
def test_error_explains_the_body(data: bytes, message: str) -> None:
    assert refuse(data, _Values)[1] == message
