"""Parse tool calls from Hermes and Qwen models.

<tool_call> {"name": NAME, "arguments": {…}} </tool_call>

Qwen3-Coder uses the same tags, but with XML inside. Sources: the chat templates of
NousResearch/Hermes-3-Llama-3.1-8B, Qwen/Qwen3-8B and Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

from trtllm_serve_cli.gateway.prompts.tools.call_body import ObjectBody, XmlBody
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolParser


class HermesParser(ToolParser):
    """A parser for calls between the tags `<tool_call>` and `</tool_call>`."""

    end_tag = "</tool_call>"

    def _read_content(self) -> bool:
        return self._read_until({"<tool_call>": self._read_start}, keeps_tag=True)

    def _read_start(self) -> bool:
        if not self._skip_space():
            return False
        if self._buffer[0] == "{":
            return self._open_body(ObjectBody(), self._read_end)
        if self._buffer[0] == "<":
            return self._open_body(XmlBody(self._options.schemas), self._read_end)
        return self._give_up()

    def _read_end(self) -> bool:
        if not self._skip_space():
            return False
        if self._buffer.startswith(self.end_tag):
            self._buffer = self._buffer.removeprefix(self.end_tag)
        elif self.end_tag.startswith(self._buffer):
            self._buffer = "" if self._is_last else self._buffer
            return False
        self._raw = ""
        self._state = self._read_content
        return True
