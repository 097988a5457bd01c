"""Convert OpenAI Responses API requests to chat completions."""

from __future__ import annotations

from typing import Any

from trtllm_serve_cli.gateway.errors import ApiError, invalid
from trtllm_serve_cli.gateway.schema.chat import (
    ChatBody,
    ChatMessage,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    Tool,
    ToolCall,
)
from trtllm_serve_cli.gateway.schema.responses import (
    FunctionTool,
    InputItem,
    Part,
    ResponsesBody,
    SelectedTool,
    TextFormat,
    ToolChoice,
)
from trtllm_serve_cli.gateway.schema.sampling import JsonSchema, ResponseFormat

# Maps fields of chat completion requests to fields of Responses requests, for error messages.
CHAT_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
}
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_LOG_PROBS = "message.output_text.logprobs"


def convert_body(body: ResponsesBody) -> ChatBody:
    """Return the chat completion request that is equivalent to a Responses request.

    Raise `ApiError` (400) if the input is empty, or if a parameter, an item or a tool is
    incomplete, invalid or not supported.
    """
    _check_include(body)
    messages = _convert_input(body)
    tools, choice = _convert_tools(body)
    format_ = body.text.format if body.text else None
    return ChatBody(
        model=body.model,
        messages=messages,
        stream=body.stream,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_convert_format(format_) if format_ else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )


def _check_include(body: ResponsesBody) -> None:
    if _LOG_PROBS in (body.include or ()):
        raise _unsupported(
            "include",
            f"'{_LOG_PROBS}' in `include` is not supported, because responses do not contain log "
            "probabilities. Omit this value, or use /v1/chat/completions.",
        )


def _convert_input(body: ResponsesBody) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if body.instructions:
        messages.append(ChatMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, ChatMessage(role="user", content=body.input)]
    for number, item in enumerate(body.input):
        _add_item(messages, item, f"input[{number}]")
    if not messages:
        raise invalid("`input` is empty. Send text or at least one item.", "input")
    return messages


def _add_item(messages: list[ChatMessage], item: InputItem, path: str) -> None:
    match item.type:
        case "message" if item.role == "assistant":
            message = _open_assistant(messages, has_content=True)
            message.content = _convert_parts(_require(item.content, path, "content"), path)
        case "message":
            role = _require(item.role, path, "role")
            content = _convert_parts(_require(item.content, path, "content"), path)
            messages.append(ChatMessage(role=role, content=content))
        case "function_call":
            name = _require(item.name, path, "name")
            function = FunctionCall(name=name, arguments=item.arguments or "")
            call = ToolCall(id=_require(item.call_id, path, "call_id"), function=function)
            message = _open_assistant(messages)
            message.tool_calls = [*(message.tool_calls or ()), call]
        case "function_call_output":
            messages.append(
                ChatMessage(
                    role="tool",
                    tool_call_id=_require(item.call_id, path, "call_id"),
                    content=_convert_parts(_require(item.output, path, "output"), path),
                )
            )
        case "reasoning":
            parts = item.content if isinstance(item.content, list) else []
            reasoning = "".join(each.text or "" for each in parts or item.summary or ())
            messages.append(ChatMessage(role="assistant", reasoning_content=reasoning or None))
        case "item_reference":
            raise _unsupported(
                "input",
                f"`{path}` refers to a stored item, but the gateway does not store responses. Send "
                "the whole item.",
            )
        case _:
            raise _unsupported(
                "input",
                f"`{path}` has type '{item.type}', which is not supported. Use 'message', "
                "'function_call', 'function_call_output' or 'reasoning'.",
            )


def _open_assistant(messages: list[ChatMessage], *, has_content: bool = False) -> ChatMessage:
    """Return the assistant message that receives the next item.

    Return the last message if it is from the assistant. Otherwise, append a new message. Also
    append a new message if the item has content and the last message already has content or tool
    calls, because a message has only one content, which precedes its tool calls.
    """
    last = messages[-1] if messages else None
    if (
        last is None
        or last.role != "assistant"
        or (has_content and (last.content is not None or last.tool_calls))
    ):
        last = ChatMessage(role="assistant")
        messages.append(last)
    return last


def _convert_parts(content: str | list[Part], path: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    return [_convert_part(each, path) for each in content]


def _convert_part(part: Part, path: str) -> ContentPart:
    if part.type == "refusal":
        return ContentPart(type="refusal", refusal=part.refusal)
    if part.type in _TEXT_PARTS:
        return ContentPart(type="text", text=_require(part.text, path, "text"))
    raise _unsupported(
        "input",
        f"`{path}` contains a content part of type '{part.type}', which is not supported. Use the "
        "type 'input_text'.",
    )


def _convert_tools(body: ResponsesBody) -> tuple[list[Tool], Any]:
    """Convert `tools` and `tool_choice` to their equivalents in a chat completion request."""
    tools = [_convert_tool(each) for each in body.tools or ()]
    choice = body.tool_choice
    if not isinstance(choice, ToolChoice):
        return tools, choice
    if choice.type == "function":
        return tools, NamedTool(function=NamedFunction(name=_require_tool_name(choice)))
    if choice.type == "allowed_tools":
        names = {_require_tool_name(each) for each in choice.tools}
        known = {each.function.name for each in tools}
        if unknown := sorted(names - known):
            raise invalid(
                f"`tool_choice` allows the function '{unknown[0]}', which is not in `tools`. "
                f"Available functions: {', '.join(sorted(known)) or 'none'}.",
                "tool_choice",
            )
        return [each for each in tools if each.function.name in names], choice.mode
    raise _unsupported(
        "tool_choice",
        f"`tool_choice` of type '{choice.type}' is not supported. Use the type 'function' or "
        "'allowed_tools'.",
    )


def _convert_tool(tool: FunctionTool) -> Tool:
    if tool.type != "function":
        raise _unsupported(
            "tools",
            f"Tools of type '{tool.type}' are not supported, because the gateway does not run "
            "tools. Use tools of type 'function'.",
        )
    if not tool.name:
        raise invalid("A tool does not have a name. Set `name` for each tool.", "tools")
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(function=function)


def _convert_format(text_format: TextFormat) -> ResponseFormat:
    if text_format.type != "json_schema":
        return ResponseFormat(type=text_format.type)
    if text_format.schema is None:
        raise invalid(
            "`text.format.schema` is required when `text.format.type` is 'json_schema'.",
            "text.format",
        )
    if text_format.name is None:
        raise invalid(
            "`text.format.name` is required when `text.format.type` is 'json_schema'.",
            "text.format",
        )
    schema = JsonSchema(name=text_format.name, schema=text_format.schema, strict=text_format.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _require_tool_name(tool: ToolChoice | SelectedTool) -> str:
    if tool.type != "function":
        raise _unsupported(
            "tool_choice",
            f"`tool_choice` selects a tool of type '{tool.type}', but the gateway does not run "
            "tools. Select tools of type 'function'.",
        )
    if tool.name is None:
        raise invalid(
            "A function in `tool_choice` does not have a name. Set `name` for each function.",
            "tool_choice",
        )
    return tool.name


def _require(value: Any, path: str, name: str) -> Any:
    if value is None:
        raise invalid(f"`{name}` is missing in `{path}`. Set `{name}`.", "input")
    return value


def _unsupported(param: str, message: str) -> ApiError:
    return invalid(message, param, "unsupported_parameter")
