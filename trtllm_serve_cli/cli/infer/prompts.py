"""Read prompts from an argument, stdin or a file, and apply the chat template."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.client.model_info import ModelInfo


def check_prompt(words: str) -> None:
    """Raise `BadInput` if the prompt is empty.

    With a chat template, the server cannot detect an empty prompt, because the template adds text
    to every prompt.
    """
    if not words:
        raise BadInput(
            "The prompt is empty.",
            next_step='pass a prompt, for example `tllm infer "What is ML?"`',
        )


def read_prompt(prompt: str) -> str:
    """Return the prompt, or the content of stdin without the last newline if `prompt` is `-`.

    Raise `BadInput` if stdin is not UTF-8 text.
    """
    if prompt != "-":
        return prompt
    return _decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n").removesuffix("\r")


def read_lines(file: Path) -> Iterable[str]:
    """Return the lines of `file`, or the lines of stdin if `file` is `-`.

    Raise `BadInput` if the input cannot be read or is not UTF-8 text.
    """
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=error.strerror or str(error),
            next_step="pass a text file with one prompt per line, or a JSONL file, with --batch "
            "FILE",
        ) from error
    return _decode(content, str(file)).split("\n")


def plan_prompt(info: ModelInfo, chat: bool | None, system: str | None) -> Callable[[str], str]:
    """Return a function that applies the chat template to a prompt.

    If the server applies the template, or if no template is used, the function returns the prompt
    unchanged. Raise `BadInput` if a chat template is required, but neither the model nor the server
    has one.
    """
    if chat is True or system is not None:
        check_template(info)
    if chat is False or info.chat_template is None:
        return str
    from trtllm_serve_cli.client.conversation import render_turns

    return lambda words: render_turns(info, system, (), words)


def check_template(info: ModelInfo) -> None:
    """Raise `BadInput` if neither the model nor the server has a chat template."""
    if info.chat_template is None and not info.renders_chat:
        raise BadInput(
            f"{info.name} has no chat template.",
            why="conversations, --chat and --system require a chat template",
            next_step="send the prompt unchanged with `tllm infer --raw PROMPT`",
        )


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{origin} is not UTF-8 text.",
            why=f"the byte at offset {error.start} is invalid",
            next_step="convert the input to UTF-8, for example with `iconv -t utf-8`",
        ) from error
