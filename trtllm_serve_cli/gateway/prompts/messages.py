"""Convert API messages to the form that chat templates expect."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.schema.chat import ChatMessage, ContentPart


def convert_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message in the form that chat templates expect.

    Content parts are joined with line breaks, as in vLLM's server. Tool call arguments are parsed
    into an object, or left as a string if they are not a valid JSON object.
    """
    converted: dict[str, Any] = msgspec.to_builtins(message)
    if isinstance(message.content, list):
        converted["content"] = "\n".join(map(_read_part, message.content))
    elif message.content is None:
        converted["content"] = ""
    if message.role == "developer":
        converted["role"] = "system"
    for call in converted.get("tool_calls") or ():
        call["function"]["arguments"] = _read_arguments(call["function"].get("arguments", ""))
    return converted


def _read_part(part: ContentPart) -> str:
    if part.type in ("text", "refusal"):
        return part.text or part.refusal or ""
    raise invalid(
        f"Content of the type '{part.type}' is not supported. Send parts of the type text.",
        "messages",
        "unsupported_parameter",
    )


def _read_arguments(text: str) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
