"""Parse text with an output parser, as a whole or in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trtllm_serve_cli.gateway.prompts.output_parser import OutputDelta, OutputParser
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolOptions

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
SCHEMAS = {"get_weather": WEATHER, "get_time": {"type": "object", "properties": {}}}


def options(*, allows_several: bool = True) -> ToolOptions:
    """Return options with two tools, and with ids that count from 0."""
    numbers = itertools.count()
    return ToolOptions(SCHEMAS, allows_several, new_id=lambda: f"id{next(numbers)}")


@dataclass(slots=True)
class Parsed:
    """The output of a parser: the content, the reasoning, and [id, name, arguments] of calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def add(self, delta: OutputDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.tool_calls:
            if call.id is not None:
                assert call.index == len(self.calls) and call.name
                self.calls.append([call.id, call.name, ""])
            assert call.index == len(self.calls) - 1
            self.calls[call.index][2] += call.arguments


def parse(parser: OutputParser, pieces: Iterable[str]) -> Parsed:
    """Return the output for text that arrives in pieces."""
    parsed = Parsed()
    *first, last = pieces
    for piece in first:
        parsed.add(parser.push(piece, is_last=False))
    parsed.add(parser.push(last, is_last=True))
    return parsed


def split(text: str, cuts: Sequence[int]) -> list[str]:
    """Split `text` at the positions `cuts`."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]
