"""Parse tool calls from Mistral models.

[TOOL_CALLS][{"name": NAME, "arguments": {…}}, …]
[TOOL_CALLS]NAME[ARGS]{…}[TOOL_CALLS]…

Models with tokenizer version 11 or later use the second format. [ARGS] is optional, and [CALL_ID]
and an id may precede it. Source: mistral-common 1.8, `tokens/tokenizers`.
"""

from __future__ import annotations

import re

from trtllm_serve_cli.gateway.prompts.tools.call_body import ArgumentsBody, ObjectBody
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolParser

_HEADER = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\]\s*)?")
_MAX_HEADER = 512
# The characters that a header may contain, including the brackets of its tags.
_HEADER_CHARACTERS = re.compile(r"[\w.\-\s\[\]]*")


class MistralParser(ToolParser):
    """A parser for calls after the [TOOL_CALLS] token."""

    end_tag = "[TOOL_CALLS]"

    def _read_content(self) -> bool:
        return self._read_until({"[TOOL_CALLS]": self._read_start}, keeps_tag=False)

    def _read_start(self) -> bool:
        if not self._skip_space():
            return False
        if self._buffer[0] == "[":
            self._raw += "["
            self._buffer = self._buffer[1:]
            self._state = self._read_item
        else:
            self._state = self._read_header
        return True

    def _read_item(self) -> bool:
        """Read the next object of the array, or the end of the array."""
        if not self._skip_space(","):
            return False
        if self._buffer[0] == "{":
            return self._open_body(ObjectBody(), self._read_item)
        if self._buffer[0] == "]" and self._num_calls:
            self._buffer = self._buffer[1:]
            self._raw = ""
            self._state = self._read_content
            return True
        return self._give_up()

    def _read_header(self) -> bool:
        """Read the header of a call, which ends where the arguments start.

        The header contains the function name and, in some models' calls, an id.
        """
        header, brace, _ = self._buffer.partition("{")
        if len(header) > _MAX_HEADER or not _HEADER_CHARACTERS.fullmatch(header):
            return self._give_up()
        if not brace:
            return False
        if (match := _HEADER.fullmatch(header)) is None:
            return self._give_up()
        self._raw += header
        self._buffer = self._buffer[len(header) :]
        return self._open_body(ArgumentsBody(match[1], match[2]), self._read_content)
