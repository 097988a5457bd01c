"""Render the messages of API requests with a model's chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trtllm_serve_cli.client.chat import RESERVED_VARIABLES, render_chat
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.prompts.reasoning import ReasoningTags, find_reasoning
from trtllm_serve_cli.gateway.prompts.tools.described_tools import describe_tools
from trtllm_serve_cli.gateway.prompts.tools.formats import FORMATS, ToolFormat, find_format


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template and the tokenizer's special tokens.

    `adds_bos` is true if the tokenizer adds the BOS token to prompts. `tool_parser` is the name of
    the model's tool call format. If it is None, the format is inferred from the chat template.
    `tool_source` is the template for conversations with tools, or None if the model has one
    template for all conversations.
    """

    source: str
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = False
    tool_parser: str | None = None
    tool_source: str | None = None

    @classmethod
    def of(
        cls, info: ModelInfo, override: str | None = None, tool_parser: str | None = None
    ) -> ChatTemplate | None:
        """Return the chat template `override` or, if it is not set, the model's own templates.

        Return None if there is no template. Raise `BadInput` if `tool_parser` is unknown.
        """
        if tool_parser is not None and tool_parser not in FORMATS:
            raise BadInput(
                f"The tool parser {tool_parser!r} does not exist.",
                next_step=f"choose one of {', '.join(sorted(FORMATS))}",
            )
        source = override or info.chat_template
        if source is None:
            return None
        tool_source = None if override else info.tool_chat_template
        return cls(source, info.bos_token, info.eos_token, info.adds_bos, tool_parser, tool_source)

    def select(self, *, has_tools: bool) -> ChatTemplate:
        """Return the template for a conversation with or without tools.

        As in Transformers, a conversation with tools uses the template for tools if the model has
        one. However, if this template's tool call format is unknown, use the default template,
        whose format `describe_tools` defines.
        """
        template = self._tool_template
        return template if has_tools and template and template.tool_format else self

    @cached_property
    def _tool_template(self) -> ChatTemplate | None:
        if self.tool_source is None:
            return None
        return replace(self, source=self.tool_source, tool_source=None)

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """The model's tool call format, or None if it is unknown."""
        return FORMATS[self.tool_parser] if self.tool_parser else find_format(self.source)

    @cached_property
    def supports_tools(self) -> bool:
        """True if the template refers to `tools`.

        If it is false, `render` describes the tools in the messages.
        """
        return re.search(r"\btools\b", self.source) is not None

    @cached_property
    def reasoning(self) -> ReasoningTags | None:
        """The tags around the model's reasoning, or None if the template does not contain any."""
        return find_reasoning(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        adds_generation_prompt: bool = True,
        continues_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt that the template selected by `tools` creates from the messages.

        `variables` are additional variables of the template. Raise `ApiError` (400) if both
        `continues_final_message` and `adds_generation_prompt` are set, if `variables` contains a
        reserved name, or if the template cannot render the messages.
        """
        if continues_final_message and adds_generation_prompt:
            raise invalid(
                "`continue_final_message` and `add_generation_prompt` cannot both be true. Set "
                "`add_generation_prompt` to false.",
                "continue_final_message",
            )
        if reserved := sorted(RESERVED_VARIABLES & {*(variables or ())}):
            raise invalid(
                f"`chat_template_kwargs` contains the reserved variable '{reserved[0]}'. Remove "
                f"'{reserved[0]}' from `chat_template_kwargs`.",
                "chat_template_kwargs",
            )
        template = self.select(has_tools=bool(tools))
        if not template.supports_tools:
            messages, tools = describe_tools(messages, tools), None
        try:
            return render_chat(
                template.source,
                messages,
                tools=tools,
                documents=documents,
                adds_generation_prompt=adds_generation_prompt,
                continues_final_message=continues_final_message,
                variables=variables,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                adds_bos=self.adds_bos,
            )
        except BadInput as error:
            raise invalid(
                f"{error.what} {error.why}. Change the messages, or ask the operator to check the "
                "chat template.",
                "messages",
            ) from error
