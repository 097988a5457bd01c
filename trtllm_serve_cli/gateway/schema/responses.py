"""Define the request body of OpenAI's Responses API.

The fields are from `openai/types/responses/response_create_params.py` and
`response_input_item_param.py` in version 3.54 of the Python package `openai`. Unknown fields are
ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.chat import NO_MODERATION
from trtllm_serve_cli.gateway.schema.marks import IGNORED, rejected
from trtllm_serve_cli.gateway.schema.sampling import Metadata, Name, Probability, Temperature


class Part(msgspec.Struct, kw_only=True):
    """A part of a message, a tool output, or reasoning."""

    type: str
    text: str | None = None
    refusal: str | None = None


class SummaryPart(msgspec.Struct, kw_only=True):
    """A part of a reasoning summary."""

    text: str
    type: Annotated[str, IGNORED] = "summary_text"


class InputItem(msgspec.Struct, kw_only=True):
    """An item in the conversation: a message, a tool call, a tool output, or reasoning."""

    type: str = "message"
    # Fields of messages.
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    # Fields of tool calls and tool outputs.
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    # Field of reasoning items, in addition to `content`.
    summary: list[SummaryPart] | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    """A tool that the model may call. Only the type `function` is supported."""

    type: Annotated[
        str, rejected("the gateway does not run tools", "Use tools of type 'function'.")
    ]
    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,128}\\Z")] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class SelectedTool(msgspec.Struct, kw_only=True):
    """A reference to one of the request's tools."""

    type: Annotated[
        str, rejected("the gateway does not run tools", "Select tools of type 'function'.")
    ]
    name: str | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """The function that the model must call, or the tools that it may call.

    With the type `function`, the model must call the function `name`. With the type
    `allowed_tools`, the model may call only `tools`. If `mode` is `required`, the model must call
    one of these tools.
    """

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[SelectedTool] = []


class TextFormat(msgspec.Struct, kw_only=True):
    """The format of the response: plain text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[Name | None, IGNORED] = None
    schema: dict[str, Any] | None = None
    strict: Annotated[bool | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None


class TextConfig(msgspec.Struct, kw_only=True):
    """Settings for the response text. `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, IGNORED] = None


class Reasoning(msgspec.Struct, kw_only=True):
    """Settings for reasoning. `effort` is passed to the chat template. `summary` has no effect."""

    effort: str | None = None
    summary: Annotated[str | None, IGNORED] = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    # Fields that the gateway does not support.
    previous_response_id: Annotated[
        str | None,
        rejected("the gateway does not store responses", "Send the whole conversation in `input`."),
    ] = None
    conversation: Annotated[
        str | dict[str, Any] | None,
        rejected(
            "the gateway does not store conversations", "Send the whole conversation in `input`."
        ),
    ] = None
    prompt: Annotated[
        dict[str, Any] | None,
        rejected("the gateway does not store prompts", "Use `instructions` and `input` instead."),
    ] = None
    background: Annotated[
        bool | None,
        rejected("the gateway does not store responses", "Omit it, or set it to false."),
    ] = False
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        rejected(
            "the gateway does not truncate conversations",
            "Omit it, and remove items from `input` if it exceeds the model's context length.",
        ),
    ] = "disabled"
    context_management: Annotated[
        list[dict[str, Any]] | None,
        rejected(
            "the gateway does not truncate conversations",
            "Omit it, and remove items from `input` if it exceeds the model's context length.",
        ),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=20)] | None,
        rejected(
            "responses do not contain log probabilities", "Omit it, or use /v1/chat/completions."
        ),
    ] = 0
    moderation: Annotated[dict[str, Any] | None, rejected(NO_MODERATION)] = None
    # Fields that have no effect on the generated text. The response repeats some of their values.
    # As an exception, the gateway rejects `include` if it contains
    # `message.output_text.logprobs`.
    include: Annotated[list[str] | None, IGNORED] = None
    max_tool_calls: Annotated[int | None, IGNORED] = None
    metadata: Annotated[Metadata | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    store: Annotated[bool | None, IGNORED] = None
    stream_options: Annotated[dict[str, Any] | None, IGNORED] = None
    user: Annotated[str | None, IGNORED] = None
