"""Define the body of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.sampling import SamplingBody

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only parts with text are supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """A function that the model called, with its arguments as JSON."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call in the conversation's history."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of the conversation."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class ChatBody(SamplingBody, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    # vLLM's extensions of the OpenAI API.
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_effort: str | None = None
