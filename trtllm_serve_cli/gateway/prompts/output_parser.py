"""Split the generated text of a chat completion into content, reasoning and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a tool call.

    The first part of a call has the `id` and the `name`. The `arguments` of all parts together form
    a JSON object. `index` is the position of the call in the response, from 0.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """New content, new reasoning, or new parts of tool calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class OutputParser(Protocol):
    """A parser for the text of one sequence, which arrives in pieces of any length."""

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        """Return the output that `text` adds. Text that may be the start of a tag is held back
        until later text shows whether it is a tag.
        """


class PlainParser:
    """A parser for responses that consist only of content."""

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        return OutputDelta(content=text)
