"""Parse tool calls from Llama 3 models.

{"name": NAME, "parameters": {…}}; {…}

The <|python_tag|> token may precede the calls. Source: the chat templates of
meta-llama/Llama-3.1-8B-Instruct and meta-llama/Llama-3.2-3B-Instruct.
"""

from __future__ import annotations

from trtllm_serve_cli.gateway.prompts.tools.call_body import ObjectBody
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolOptions, ToolParser


class Llama3Parser(ToolParser):
    """A parser for JSON objects at the start of a response or after the <|python_tag|> token.

    An object is a call only if it contains the name of a tool. Other objects and text are content.
    """

    _TAG = "<|python_tag|>"

    def __init__(self, options: ToolOptions) -> None:
        super().__init__(options)
        self._state = self._read_start

    def _read_start(self) -> bool:
        """Skip the tag, if any, and parse a call if an object follows."""
        if not self._skip_space(";," if self._num_calls else ""):
            return False
        if self._buffer[0] == "{":
            return self._open_body(ObjectBody(self._options.schemas), self._read_start)
        if self._buffer.startswith(self._TAG):
            self._buffer = self._buffer.removeprefix(self._TAG)
            return True
        if self._TAG.startswith(self._buffer) and not self._is_last:
            return False
        return self._give_up()

    def _read_content(self) -> bool:
        return self._read_until({self._TAG: self._read_start}, keeps_tag=False)
