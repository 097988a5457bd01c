"""Convert API messages to the format of chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.prompts.load_json import load_json
from trtllm_serve_cli.gateway.schema.chat import ChatMessage, ContentPart


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Raise `ApiError` (400) if a message is not valid.

    A message must have the fields that OpenAI's API requires for its role, and its content must not
    be an empty list.
    """
    for index, message in enumerate(messages):
        if (problem := _find_problem(message)) is not None:
            field, text = problem
            path = f"messages[{index}].{field}"
            raise invalid(f"`{path}` {text}", path)


def _find_problem(message: ChatMessage) -> tuple[str, str] | None:
    """Return the first invalid field and what is wrong with it, or None if all are valid."""
    if message.content == []:
        return "content", "is empty. Send text or at least one content part."
    if message.role == "tool" and not message.tool_call_id:
        return "tool_call_id", "is missing. Set it to the id of the tool call."
    if message.content is not None or message.role == "function":
        return None
    if message.role != "assistant":
        return "content", "is missing. Send text."
    if message.tool_calls or message.refusal or message.reasoning_content:
        return None
    return "content", "is missing. Send text or `tool_calls`."


def convert_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message in the format that chat templates expect.

    Content parts are joined with line breaks, as in vLLM's server. Missing content becomes an empty
    string, and the role `developer` becomes `system`. Tool call arguments are parsed into an
    object, or left as a string if they are not a valid JSON object. Raise `ApiError` (400) if a
    content part is not supported or has no text.
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
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise invalid(
                f"`{part.type}` is missing in a content part of type '{part.type}'. Set "
                f"`{part.type}` to a string.",
                "messages",
            )
        return text
    raise invalid(
        f"Content parts of type '{part.type}' are not supported. Use the type 'text'.",
        "messages",
        "unsupported_parameter",
    )


def _read_arguments(text: str) -> Any:
    try:
        value = load_json(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
