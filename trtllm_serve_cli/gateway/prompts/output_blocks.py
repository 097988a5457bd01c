"""Convert model output to a list of blocks: reasoning, text and tool calls.

A chat completion has one field for each kind of output. Anthropic's Messages API and OpenAI's
Responses API instead return a list of blocks in the order of generation. In a stream, events mark
the start and the end of each block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.prompts.output_parser import OutputDelta, OutputParser, ToolCallDelta
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Block:
    """A block of a response. Only tool call blocks have an `id` and a `name`."""

    index: int
    kind: Literal["reasoning", "text", "call"]
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text or, for a tool call, the arguments generated so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change to a block: it was opened, `text` was added to it, or it was closed."""

    kind: Literal["opened", "added", "closed"]
    block: Block
    text: str = ""


class BlockReader:
    """Converts the text of one sequence to blocks. At most one block is open at a time.

    After the last delta, `finish_reason` is set. `stop_sequence` is also set if a stop string ended
    the sequence.
    """

    def __init__(self, parser: OutputParser) -> None:
        self.blocks: list[Block] = []
        self.finish_reason: Literal["stop", "length"] | None = None
        self.stop_sequence: str | None = None
        self._parser = parser
        self._open: Block | None = None
        self._call_index = -1
        self._events: list[BlockEvent] = []

    @property
    def has_calls(self) -> bool:
        return self._call_index >= 0

    def count_reasoning_tokens(self, tokenizer: Tokenizer) -> int:
        """Return the number of tokens in the reasoning blocks, excluding the tags."""
        texts = [each.text for each in self.blocks if each.kind == "reasoning"]
        return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)

    def push(self, delta: TextDelta) -> list[BlockEvent]:
        """Add generated text and return the events. The last delta closes the open block."""
        is_last = delta.finish_reason is not None
        self._add(self._parser.push(delta.text, is_last=is_last))
        if is_last:
            self._close()
            self.finish_reason = delta.finish_reason
            if isinstance(delta.stop_reason, str):
                self.stop_sequence = delta.stop_reason
        events, self._events = self._events, []
        return events

    def _add(self, output: OutputDelta) -> None:
        if output.reasoning:
            self._add_text("reasoning", output.reasoning)
        calls = output.tool_calls
        # Add the rest of the open tool call first: the model generated it before `output.content`.
        num_continued = sum(1 for each in calls if each.index <= self._call_index)
        for call in calls[:num_continued]:
            self._add_call(call)
        if output.content:
            self._add_text("text", output.content)
        for call in calls[num_continued:]:
            self._add_call(call)

    def _add_text(self, kind: Literal["reasoning", "text"], text: str) -> None:
        block = self._open
        if block is None or block.kind != kind:
            block = self._start(Block(len(self.blocks), kind))
        self._extend(block, text)

    def _add_call(self, call: ToolCallDelta) -> None:
        block = self._open
        if block is None or call.index != self._call_index:
            self._call_index = call.index
            block = self._start(Block(len(self.blocks), "call", call.id or "", call.name or ""))
        if call.arguments:
            self._extend(block, call.arguments)

    def _start(self, block: Block) -> Block:
        self._close()
        self.blocks.append(block)
        self._open = block
        self._events.append(BlockEvent("opened", block))
        return block

    def _extend(self, block: Block, text: str) -> None:
        block.pieces.append(text)
        self._events.append(BlockEvent("added", block, text))

    def _close(self) -> None:
        if self._open is not None:
            self._events.append(BlockEvent("closed", self._open))
            self._open = None
