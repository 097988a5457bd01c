"""Describe tools in the messages if the chat template does not support tools.

The description specifies the format that `HermesParser` parses. Earlier tool calls and their
results are converted to text in the same format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_DESCRIPTION = """\
You can call these functions. Each line is the JSON definition of one function:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between these tags:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>

The result of the call is then sent to you between <tool_response> tags. If no function is \
needed, answer without these tags."""


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the messages without tool roles and describe `tools` in the system message.

    Tool calls become text in assistant messages, and tool results become user messages.
    """
    described: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] not in ("tool", "function"):
            described.append(_write_calls(message))
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if described and described[-1].get("is_result"):
            described[-1]["content"] += f"\n{text}"
        else:
            described.append({"role": "user", "content": text, "is_result": True})
    for message in described:
        message.pop("is_result", None)
    if tools:
        _add_to_system(described, _DESCRIPTION.format(tools="\n".join(map(_to_json, tools))))
    return described


def _write_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    written = {key: value for key, value in message.items() if key != "tool_calls"}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        fields = {"name": function["name"], "arguments": function["arguments"]}
        text = f"<tool_call>\n{_to_json(fields)}\n</tool_call>"
        written["content"] = f"{written['content']}\n{text}".lstrip("\n")
    return written


def _add_to_system(messages: list[dict[str, Any]], text: str) -> None:
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
    else:
        messages.insert(0, {"role": "system", "content": text})


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
