"""Split generated text into content and tool calls."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_serve_cli.gateway.generation.text_stream import find_stop, len_of_partial_stop
from trtllm_serve_cli.gateway.prompts.output_parser import OutputDelta, ToolCallDelta
from trtllm_serve_cli.gateway.prompts.tools.call_body import CallBody
from trtllm_serve_cli.gateway.prompts.tools.json_scanner import InvalidCall


def new_call_id() -> str:
    """Return a random id for a tool call, in the format of OpenAI's API."""
    return f"call_{uuid.uuid4().hex[:24]}"


def new_mistral_call_id() -> str:
    """Return a random id that Mistral's chat templates accept: nine letters and digits."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=9))


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The tools of a request.

    `schemas` maps the name of each function to the JSON schema of its parameters. Unless
    `allows_several` is set, only the first call of a response is returned. `new_id` creates ids for
    calls without an id in the generated text.
    """

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    allows_several: bool = True
    new_id: Callable[[], str] = new_call_id


class ToolParser:
    """Base class of the tool call parsers. Each format has a subclass that adds its own states.

    A state is a method that consumes text from the start of `_buffer` and returns False if it
    needs more text. Whitespace next to calls is discarded. Text that turns out not to be a call is
    treated as content. If the arguments turn out to be invalid JSON after part of them has been
    returned, the rest is returned unchanged.
    """

    # The string that ends a call with invalid arguments. If it is empty, the call extends to the
    # end of the text.
    end_tag = ""

    def __init__(self, options: ToolOptions) -> None:
        self._options = options
        self._state: Callable[[], bool] = self._read_content
        self._buffer = ""
        self._is_last = False
        # The text since the start of the call. It becomes content if it is not a valid call.
        self._raw = ""
        self._body: CallBody | None = None
        self._after_body: Callable[[], bool] = self._read_content
        self._is_announced = False
        self._num_calls = 0
        self._has_content = False
        self._held_space = ""
        self._content = ""
        self._deltas: list[ToolCallDelta] = []

    def push(self, text: str, *, is_last: bool) -> OutputDelta:
        self._buffer += text
        self._is_last = is_last
        while self._buffer and self._state():
            pass
        if is_last:
            self._finish()
        output = OutputDelta(content=self._content, tool_calls=tuple(self._deltas))
        self._content, self._deltas = "", []
        return output

    def _finish(self) -> None:
        if self._raw or self._buffer:
            self._give_up()
            self._add_content(self._buffer)
        if not self._num_calls:
            self._content += self._held_space
        self._buffer = self._held_space = ""

    # Parser states that all formats use.

    def _read_content(self) -> bool:
        """Emit text as content until a call starts. Each subclass implements this state."""
        raise NotImplementedError

    def _read_until(self, tags: Mapping[str, Callable[[], bool]], *, keeps_tag: bool) -> bool:
        """Emit text up to the first tag in `tags` and continue with the state for this tag.

        With `keeps_tag`, the tag becomes content if the text after it is not a call.
        """
        if (found := find_stop(self._buffer, tuple(tags))) is not None:
            start, tag = found
            self._add_content(self._buffer[:start])
            self._buffer = self._buffer[start + len(tag) :]
            self._raw = tag if keeps_tag else ""
            self._state = tags[tag]
            return True
        num_held = 0
        if tags and not self._is_last:
            num_held = len_of_partial_stop(self._buffer, tuple(tags))
        end = len(self._buffer) - num_held
        self._add_content(self._buffer[:end])
        self._buffer = self._buffer[end:]
        return False

    def _read_body(self) -> bool:
        """Parse a call and continue with the state `_after_body`."""
        body = self._body
        assert body is not None
        for index, char in enumerate(self._buffer):
            try:
                body.push(char)
            except (InvalidCall, RecursionError, ValueError):
                self._raw += self._buffer[: index + 1]
                self._buffer = self._buffer[index + 1 :]
                self._reject_body(char)
                return True
            if body.is_started and not self._is_announced:
                self._announce(body)
            if body.is_done:
                self._buffer = self._buffer[index + 1 :]
                self._add_arguments(body.take())
                self._end_call()
                self._state = self._after_body
                return True
        if self._is_announced:
            self._add_arguments(body.take())
        else:
            self._raw += self._buffer
        self._buffer = ""
        return False

    def _read_invalid_arguments(self) -> bool:
        """Emit the remaining arguments unchanged. Skip text that follows complete arguments."""
        tags = (self.end_tag,) if self.end_tag else ()
        found = find_stop(self._buffer, tags)
        num_held = 0 if self._is_last or not tags else len_of_partial_stop(self._buffer, tags)
        end = found[0] if found else len(self._buffer) - num_held
        assert self._body is not None
        if not self._body.has_arguments:
            self._add_arguments(self._buffer[:end])
        self._buffer = self._buffer[end:]
        if found:
            self._end_call()
            self._state = self._after_body
        return found is not None

    # Helpers for the states.

    def _skip_space(self, also: str = "") -> bool:
        """Skip whitespace and the characters in `also`. Return whether any text is left."""
        stripped = self._buffer.lstrip(" \t\r\n" + also)
        if not self._num_calls:
            self._raw += self._buffer[: len(self._buffer) - len(stripped)]
        self._buffer = stripped
        return bool(stripped)

    def _open_body(self, body: CallBody, after: Callable[[], bool]) -> bool:
        self._body, self._after_body, self._is_announced = body, after, False
        self._state = self._read_body
        return True

    def _give_up(self) -> bool:
        """Treat the text in `_raw` as content, unless part of it has been returned as a call."""
        raw, self._raw = self._raw, ""
        if not self._is_announced:
            self._add_content(raw)
        self._state = self._read_content
        return True

    def _reject_body(self, char: str) -> None:
        if not self._is_announced:
            self._give_up()
            return
        assert self._body is not None
        self._add_arguments(self._body.take() + ("" if self._body.has_arguments else char))
        self._state = self._read_invalid_arguments

    def _announce(self, body: CallBody) -> None:
        self._is_announced = True
        self._held_space = ""
        self._num_calls += 1
        if self._is_returned():
            id = body.id or self._options.new_id()
            self._deltas.append(ToolCallDelta(self._num_calls - 1, id, body.name))

    def _is_returned(self) -> bool:
        return self._num_calls == 1 or self._options.allows_several

    def _end_call(self) -> None:
        self._raw = ""
        self._is_announced = False

    def _add_arguments(self, text: str) -> None:
        if not text or not self._is_returned():
            return
        index = self._num_calls - 1
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.index == index:
            self._deltas[-1] = ToolCallDelta(index, last.id, last.name, last.arguments + text)
        else:
            self._deltas.append(ToolCallDelta(index, arguments=text))

    def _add_content(self, text: str) -> None:
        if not text:
            return
        text = self._held_space + text
        if self._num_calls and not self._has_content:
            text = text.lstrip()
        visible = text.rstrip()
        self._held_space = text[len(visible) :]
        self._content += visible
        self._has_content = self._has_content or bool(visible)
