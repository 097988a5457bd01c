"""Define the request bodies of Anthropic's Messages API.

The fields are from `anthropic/types/message_create_params.py`, `message_count_tokens_params.py` and
`content_block_param.py` in version 2.12 of the Python package `anthropic`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.marks import IGNORED, rejected
from trtllm_serve_cli.gateway.schema.sampling import MAX_INT32, Probability


class TextBlock(msgspec.Struct, kw_only=True, tag="text"):
    """A text block in a message."""

    text: str


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use"):
    """A tool call from the model."""

    id: str
    name: str
    input: dict[str, Any] = {}


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking"):
    """The model's reasoning. The signature is not verified."""

    thinking: str
    signature: Annotated[str, IGNORED] = ""


class RedactedThinkingBlock(msgspec.Struct, kw_only=True, tag="redacted_thinking"):
    """Encrypted reasoning from another server. The gateway ignores it."""

    data: Annotated[str, IGNORED] = ""


class ImageBlock(msgspec.Struct, tag="image"):
    """An image block, which the gateway rejects."""


class DocumentBlock(msgspec.Struct, tag="document"):
    """A document block, which the gateway rejects."""


class SearchResultBlock(msgspec.Struct, tag="search_result"):
    """A search result block, which the gateway rejects."""


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(msgspec.Struct, kw_only=True, tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[ResultPart] = ""
    is_error: Annotated[bool, IGNORED] = False


ContentBlock = (
    TextBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class Message(msgspec.Struct, kw_only=True):
    """A message in the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may call. Only tools that the client executes are supported."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,128}\\Z")]
    type: Annotated[
        str | None, rejected("the gateway does not run tools", "Use tools of type 'custom'.")
    ] = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """The tool choice.

    - `auto`: the model may call any tool.
    - `any`: the model must call a tool.
    - `none`: the model cannot call tools.
    - `tool`: the model must call the tool `name`.
    """

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct, kw_only=True):
    """Settings for reasoning. `budget_tokens` has no effect.

    All types except `disabled` enable reasoning. If `display` is `omitted`, the thinking blocks of
    the response are empty.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int | None, IGNORED] = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """A JSON schema that the response must match."""

    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(msgspec.Struct, kw_only=True):
    """The format of the response, and the reasoning effort."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Annotated[dict[str, Any] | None, IGNORED] = None
    speed: Annotated[Literal["standard", "fast"] | None, IGNORED] = None


class MessagesBody(CountTokensBody, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Probability | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)] | None = None
    # Fields that have no effect on the response.
    diagnostics: Annotated[dict[str, Any] | None, IGNORED] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    # Fields that are not supported.
    container: Annotated[
        str | dict[str, Any] | None,
        rejected("the gateway does not run tools", "Use tools of type 'custom'."),
    ] = None
    inference_geo: Annotated[str | None, rejected("the gateway cannot select a region")] = None
