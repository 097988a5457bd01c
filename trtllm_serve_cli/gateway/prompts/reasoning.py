"""Split generated text into reasoning and the response that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtllm_serve_cli.gateway.generation.text_stream import len_of_partial_stop
from trtllm_serve_cli.gateway.prompts.output_parser import OutputDelta, OutputParser


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around a model's reasoning.

    `are_special` is true if the tags are special tokens, which the decoder must not skip.
    """

    start: str
    end: str
    are_special: bool = False


_TAGS = (ReasoningTags("<think>", "</think>"), ReasoningTags("[THINK]", "[/THINK]", True))


def find_reasoning(template: str) -> ReasoningTags | None:
    """Return the reasoning tags in a chat template, or None if it contains no known end tag."""
    return next((each for each in _TAGS if each.end in template), None)


class ReasoningParser:
    """A parser for reasoning at the start of a response.

    `after` parses the text that follows the reasoning. If `is_open` is true, the prompt ends with
    the start tag and the response starts inside the reasoning. Whitespace around the tags is
    discarded.
    """

    def __init__(self, tags: ReasoningTags, after: OutputParser, *, is_open: bool) -> None:
        self._tags = tags
        self._after = after
        self._state: Callable[[], bool] = self._read_reasoning if is_open else self._read_start
        self._buffer = ""
        self._is_last = False
        self._reasoning = ""
        self._rest = ""
        self._is_trimming = True
        self._is_content = False

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        if self._is_content:
            return self._after.push(text, is_last=is_last)
        self._buffer += text
        self._is_last = is_last
        while self._buffer and self._state():
            pass
        reasoning, self._reasoning = self._reasoning, ""
        rest, self._rest = self._rest, ""
        output = self._after.push(rest, is_last=is_last) if rest or is_last else OutputDelta()
        if not reasoning:
            return output
        return OutputDelta(output.content, reasoning, output.tool_calls)

    def _read_start(self) -> bool:
        stripped = self._buffer.lstrip()
        if stripped.startswith(self._tags.start):
            self._buffer = stripped.removeprefix(self._tags.start)
            self._state = self._read_reasoning
            return True
        if self._tags.start.startswith(stripped) and not self._is_last:
            return False
        return self._start_content()

    def _read_reasoning(self) -> bool:
        if self._is_trimming:
            # Skip the start tag, which some models repeat even if the prompt ends with it.
            self._buffer = self._buffer.lstrip()
            if self._buffer.startswith(self._tags.start):
                self._buffer = self._buffer.removeprefix(self._tags.start)
                return True
            if self._tags.start.startswith(self._buffer) and not self._is_last:
                return False
            self._is_trimming = False
        reasoning, end, rest = self._buffer.partition(self._tags.end)
        if end:
            self._reasoning += reasoning.rstrip()
            self._buffer = rest
            self._state = self._read_space
            return True
        num_held = 0 if self._is_last else len_of_partial_stop(self._buffer, (self._tags.end,))
        visible = self._buffer[: len(self._buffer) - num_held].rstrip()
        self._reasoning += visible
        self._buffer = "" if self._is_last else self._buffer[len(visible) :]
        return False

    def _read_space(self) -> bool:
        self._buffer = self._buffer.lstrip()
        return self._start_content() if self._buffer else False

    def _start_content(self) -> bool:
        self._is_content = True
        self._rest, self._buffer = self._buffer, ""
        return False
