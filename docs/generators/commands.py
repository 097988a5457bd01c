"""Generate commands.md from the help of every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from trtllm_serve_cli.cli.command_groups import walk_commands
from trtllm_serve_cli.cli.main import app

# Click's text width in a terminal of 80 columns.
_WIDTH = 78


def render_commands() -> str:
    """Return the text of commands.md."""
    parts = ["# Commands\n\nGenerated from `--help` by `make docs`.\n"]
    for title, text in list_helps():
        parts.append(f"## {title}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def list_helps() -> Iterator[tuple[str, str]]:
    """Yield each command of the application and of its groups, with its help."""
    root = typer.main.get_command(app)
    settings = {"terminal_width": _WIDTH, "max_content_width": _WIDTH, **root.context_settings}
    for names, command in [((), root), *walk_commands(root)]:
        title = " ".join(("tllm", *names))
        yield title, get_help(command, title, settings)


def get_help(command: Any, title: str, settings: dict[str, Any]) -> str:
    """Return the help of a command as `--help` prints it."""
    context = command.context_class(command, info_name=title, **settings)
    return str(command.get_help(context))
