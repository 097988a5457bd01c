"""The words that a user gives to be asked: an argument, stdin, a file; through a chat template."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.target import Target
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.client import ModelInfo


def check_prompt(words: str) -> None:
    """A chat template would hide from the server that nothing was asked."""
    if not words:
        raise BadInput("The prompt is empty.", next_step='tllm infer "What is ML?"')


def read_prompt(prompt: str) -> str:
    """The prompt, which for `-` is all of stdin."""
    return _decode(sys.stdin.buffer.read(), "stdin") if prompt == "-" else prompt


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


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{origin} is not UTF-8 text.",
            why=f"byte {error.start} is not",
            next_step="convert it first, as with `iconv -t utf-8`",
        ) from error


def plan_prompt(target: Target, chat: bool | None, system: str | None) -> Callable[[str], str]:
    """What makes a prompt of the user's words: the model's chat template, or nothing."""
    if chat is False:
        return str
    from trtllm_serve_cli.client import fetch_model_config

    info = fetch_model_config(target.endpoint, target.model, target.interface)
    if info.chat_template is not None:
        return lambda words: _render(info, system, words)
    if chat or system is not None:
        raise BadInput(
            f"{target.model} has no chat template.",
            why="neither --chat nor --system means anything without one",
            next_step="ask it with --raw, and put everything into the prompt",
        )
    return str


def _render(info: ModelInfo, system: str | None, words: str) -> str:
    from trtllm_serve_cli.client.chat import render_chat

    messages = [{"role": "user", "content": words}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return render_chat(
        info.chat_template or "",
        messages,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        adds_bos=info.adds_bos,
    )
