"""Convert Anthropic Messages API requests to chat completion requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from trtllm_serve_cli.gateway.errors import ApiError, invalid
from trtllm_serve_cli.gateway.schema import messages as anthropic
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
from trtllm_serve_cli.gateway.schema.sampling import JsonSchema, ResponseFormat

# Maps fields of chat completion requests to fields of Messages requests, for error messages.
CHAT_PARAMS = {"response_format": "output_config.format"}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def convert_body(body: anthropic.CountTokensBody) -> ChatBody:
    """Return the chat completion request that is equivalent to a Messages request.

    The result does not set the maximum number of tokens. If the last message is from the assistant
    and has no tool calls, the model continues this message. Raise `ApiError` (400) if the request
    contains unsupported content, an unsupported or incomplete tool, or a tool choice without the
    required name.
    """
    messages = [*_convert_system(body.system)]
    for each in body.messages:
        messages += _convert_message(each)
    last = messages[-1]
    continues = last.role == "assistant" and not last.tool_calls
    fields: dict[str, Any] = {}
    if isinstance(body, anthropic.MessagesBody):
        fields = {
            "stream": body.stream,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    choice = body.tool_choice
    if choice is not None:
        fields["tool_choice"] = _convert_choice(choice)
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if (config := body.output_config) is not None:
        fields["reasoning_effort"] = config.effort
        if config.format is not None:
            schema = JsonSchema(name="response", schema=config.format.schema)
            fields["response_format"] = ResponseFormat(type="json_schema", json_schema=schema)
    if body.thinking is not None:
        is_enabled = body.thinking.type != "disabled"
        fields["chat_template_kwargs"] = {"enable_thinking": is_enabled}
    return ChatBody(
        model=body.model,
        messages=messages,
        tools=[_convert_tool(each) for each in body.tools or ()] or None,
        continue_final_message=continues,
        add_generation_prompt=not continues,
        **fields,
    )


def _convert_system(system: str | list[anthropic.TextBlock] | None) -> Iterator[ChatMessage]:
    if system:
        content = system if isinstance(system, str) else _convert_texts(system)
        yield ChatMessage(role="system", content=content)


def _convert_message(message: anthropic.Message) -> list[ChatMessage]:
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    if message.role == "assistant":
        return [_convert_assistant(message.content)]
    return _convert_user(message.role, message.content)


def _convert_assistant(blocks: Sequence[anthropic.ContentBlock]) -> ChatMessage:
    texts: list[anthropic.TextBlock] = []
    calls: list[ToolCall] = []
    reasoning = ""
    for block in blocks:
        match block:
            case anthropic.TextBlock():
                texts.append(block)
            case anthropic.ToolUseBlock():
                function = FunctionCall(name=block.name, arguments=json.dumps(block.input))
                calls.append(ToolCall(id=block.id, function=function))
            case anthropic.ThinkingBlock():
                reasoning += block.thinking
            case anthropic.RedactedThinkingBlock():
                pass
            case _:
                raise _unsupported(block)
    return ChatMessage(
        role="assistant",
        content=_convert_texts(texts) or None,
        tool_calls=calls or None,
        reasoning_content=reasoning or None,
    )


def _convert_user(role: Any, blocks: Sequence[anthropic.ContentBlock]) -> list[ChatMessage]:
    """Return a message for each tool result and for each group of consecutive text blocks.

    If `blocks` is empty, return one empty message.
    """
    messages: list[ChatMessage] = []
    texts: list[anthropic.TextBlock] = []
    for block in blocks:
        match block:
            case anthropic.TextBlock():
                texts.append(block)
            case anthropic.ToolResultBlock() if role == "user":
                if texts:
                    messages.append(ChatMessage(role=role, content=_convert_texts(texts)))
                    texts = []
                messages.append(
                    ChatMessage(
                        role="tool",
                        tool_call_id=block.tool_use_id,
                        content=block.content
                        if isinstance(block.content, str)
                        else _convert_texts(block.content),
                    )
                )
            case _:
                raise _unsupported(block)
    if texts or not messages:
        messages.append(ChatMessage(role=role, content=_convert_texts(texts)))
    return messages


def _convert_texts(blocks: Sequence[anthropic.ResultPart]) -> list[ContentPart]:
    parts = []
    for block in blocks:
        if not isinstance(block, anthropic.TextBlock):
            raise _unsupported(block)
        parts.append(ContentPart(type="text", text=block.text))
    return parts


def _convert_tool(tool: anthropic.Tool) -> Tool:
    if tool.type not in (None, "custom"):
        raise invalid(
            f"The tool '{tool.name}' has type '{tool.type}', which is not supported. Use tools "
            "of type 'custom'.",
            "tools",
            "unsupported_parameter",
        )
    if tool.input_schema is None:
        raise invalid(
            f"`input_schema` is missing for the tool '{tool.name}'. Set `input_schema` to a JSON "
            "schema.",
            "tools",
        )
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(function=function)


def _convert_choice(choice: anthropic.ToolChoice) -> Any:
    if choice.type != "tool":
        return _TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise invalid(
            "`tool_choice.name` is required when `tool_choice.type` is 'tool'. Set it to the name "
            "of a tool.",
            "tool_choice",
        )
    return NamedTool(function=NamedFunction(name=choice.name))


def _unsupported(block: Any) -> ApiError:
    kind = type(block).__struct_config__.tag
    return invalid(
        f"Content blocks of type '{kind}' are not supported in this message. Send text blocks.",
        "messages",
        "unsupported_parameter",
    )
