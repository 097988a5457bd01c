"""Choose the tool call format for a chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtllm_serve_cli.gateway.prompts.tools.hermes import HermesParser
from trtllm_serve_cli.gateway.prompts.tools.llama3 import Llama3Parser
from trtllm_serve_cli.gateway.prompts.tools.mistral import MistralParser
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import (
    ToolOptions,
    ToolParser,
    new_call_id,
    new_mistral_call_id,
)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format for tool calls in generated text.

    A chat template that contains one of `markers` uses this format, unless it contains one of
    `other_markers`.
    """

    name: str
    new_parser: Callable[[ToolOptions], ToolParser]
    markers: tuple[str, ...]
    other_markers: tuple[str, ...] = ()
    new_id: Callable[[], str] = new_call_id

    def is_used_by(self, template: str) -> bool:
        return any(each in template for each in self.markers) and not any(
            each in template for each in self.other_markers
        )


HERMES = ToolFormat(
    "hermes",
    HermesParser,
    ("<tool_call>",),
    # The templates of GLM-4.5 and later use the same tags, but a different format inside them.
    ("<arg_key>",),
)
LLAMA3 = ToolFormat(
    "llama3",
    Llama3Parser,
    ("<|python_tag|>", '"parameters": dictionary of argument name'),
)
MISTRAL = ToolFormat("mistral", MistralParser, ("[TOOL_CALLS]",), new_id=new_mistral_call_id)
FORMATS = {each.name: each for each in (MISTRAL, HERMES, LLAMA3)}


def find_format(template: str) -> ToolFormat | None:
    """Return the tool call format that a chat template uses, or None if it is unknown."""
    return next((each for each in FORMATS.values() if each.is_used_by(template)), None)
