"""Split the generated text of a chat completion into content, reasoning and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of a streamed tool call.

    Only the first part of a call contains the `id` and the `name`. The concatenated `arguments` of
    all parts are a JSON object, unless the model generated invalid JSON or reached the token limit.
    `index` is the zero-based position of the call in the response.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """New content, new reasoning and new parts of tool calls. Each field can be empty."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class OutputParser(Protocol):
    """A parser for the text of one sequence. The text arrives in chunks of any length."""

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        """Parse `text` and return the new output.

        Text that may be the start of a tag is held back until later text completes or rules out the
        tag. If `is_last` is set, no text is held back.
        """


class PlainParser:
    """A parser that returns all text as content, for responses without reasoning or tool calls."""

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        return OutputDelta(content=text)
