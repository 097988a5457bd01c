"""Define the request body of chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.marks import IGNORED, rejected
from trtllm_serve_cli.gateway.schema.sampling import Metadata, Name, SamplingBody

_ONLY_TEXT = "the engines generate only text"
_NO_MEDIA = "messages can contain only text"
NO_MODERATION = "the gateway has no moderation model"
Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only the types `text` and `refusal` are supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """A function call. `arguments` is a JSON object, encoded as a string."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call in the conversation's history."""

    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message in the conversation."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, kw_only=True):
    """The name of one of the request's functions."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A reference to one of the request's tools. As `tool_choice`, it forces a call to the tool."""

    function: NamedFunction


class AllowedToolList(msgspec.Struct, kw_only=True):
    """The tools that the model may call. With the mode `required`, the model must call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], msgspec.Meta(min_length=1)]


class AllowedTools(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """A tool choice that restricts the model to some of the request's tools."""

    allowed_tools: AllowedToolList


class ChatBody(SamplingBody, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    # vLLM's extensions to the OpenAI API.
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: Annotated[
        str | None,
        rejected(
            "only the operator can set the chat template",
            "Ask the operator to start the gateway with --chat-template.",
        ),
    ] = None
    echo: Annotated[bool | None, rejected("responses contain only the new message")] = False
    add_special_tokens: Annotated[
        bool | None, rejected("the chat template adds the special tokens")
    ] = False
    include_reasoning: Annotated[
        bool | None,
        rejected(
            "responses always include the reasoning",
            "Set `reasoning_effort`, or ignore `reasoning_content`.",
        ),
    ] = True
    return_prompt_text: Annotated[
        bool | None,
        rejected("responses contain only the new message", "Use `return_token_ids` instead."),
    ] = False
    media_io_kwargs: Annotated[dict[str, Any] | None, rejected(_NO_MEDIA)] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, rejected(_NO_MEDIA)] = None
    # Fields of OpenAI's API that have no effect on the response.
    store: Annotated[bool | None, IGNORED] = None
    metadata: Annotated[Metadata | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None
    prediction: Annotated[dict[str, Any] | None, IGNORED] = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, IGNORED] = None
    # Fields of OpenAI's API that are not supported.
    audio: Annotated[dict[str, Any] | None, rejected(_ONLY_TEXT)] = None
    modalities: Annotated[
        list[str] | None, rejected(_ONLY_TEXT, 'Omit it, or set it to ["text"].')
    ] = msgspec.field(default_factory=lambda: ["text"])
    functions: Annotated[
        list[dict[str, Any]] | None, rejected("OpenAI has deprecated it", "Use `tools` instead.")
    ] = None
    function_call: Annotated[
        str | dict[str, Any] | None,
        rejected("OpenAI has deprecated it", "Use `tool_choice` instead."),
    ] = None
    moderation: Annotated[dict[str, Any] | None, rejected(NO_MODERATION)] = None
    web_search_options: Annotated[
        dict[str, Any] | None,
        rejected("the gateway does not run tools", "Use tools of type 'function'."),
    ] = None
