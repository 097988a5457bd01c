"""The words that a user gives to be asked: an argument, stdin, a file; through a chat template."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.client.server import ModelInfo


def check_prompt(words: str) -> None:
    """A chat template would hide from the server that nothing was asked."""
    if not words:
        raise BadInput("The prompt is empty.", next_step='tllm infer "What is ML?"')


def read_prompt(prompt: str) -> str:
    """The prompt, which for `-` is all of stdin but for the newline at its end."""
    if prompt != "-":
        return prompt
    if sys.stdin is None:  # closed: as empty as a file without anything
        return ""
    return _decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n").removesuffix("\r")


def read_lines(file: Path) -> Iterable[str]:
    """The lines of a file, or for `-` of stdin."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=error.strerror or str(error),
            next_step="give --batch a text file with a prompt a line, or a JSONL file",
        ) from error
    return _decode(content, str(file)).split("\n")


def plan_prompt(info: ModelInfo, chat: bool | None, system: str | None) -> Callable[[str], str]:
    """What makes a prompt of the user's words: the model's chat template, or nothing."""
    if chat is True or system is not None:
        check_template(info)
    if chat is False or info.chat_template is None:
        return str
    from trtllm_serve_cli.client.conversation import render_turns

    return lambda words: render_turns(info, system, (), words)


def check_template(info: ModelInfo) -> None:
    """Raise `BadInput` for a model without a chat template."""
    if info.chat_template is None:
        raise BadInput(
            f"{info.name} has no chat template.",
            why="a conversation, --chat and --system mean nothing without one",
            next_step="tllm infer --raw PROMPT, with everything in the prompt",
        )


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{origin} is not UTF-8 text.",
            why=f"byte {error.start} is not",
            next_step="convert it first, as with `iconv -t utf-8`",
        ) from error
