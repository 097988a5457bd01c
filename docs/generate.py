"""Writes docs/commands.md, the reference of all commands, out of their `--help`.

    python docs/generate.py [--check]

With `--check` nothing is written, and the exit code is 1 when the file is not what it would be.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).with_name("commands.md")
COMMANDS = (
    (),
    ("import",),
    ("build",),
    ("list",),
    ("show",),
    ("set",),
    ("validate",),
    ("remove",),
    ("start",),
    ("stop",),
    ("status",),
    ("logs",),
    ("infer",),
    ("bench",),
    ("bench", "token-norm-dist"),
    ("metrics",),
    ("lora", "convert"),
    ("doctor",),
)


def help_of(words: tuple[str, ...]) -> str:
    """The help text of one command, 80 columns wide."""
    environ = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", *words, "--help")
    text = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    return text.replace("python -m trtllm_serve_cli.cli.main", "tllm").rstrip()


def render() -> str:
    """The whole page."""
    parts = ["# Commands\n\nGenerated from `--help` by `make docs`.\n"]
    for words in COMMANDS:
        title = " ".join(["tllm", *words])
        parts.append(f"## {title}\n\n```text\n{help_of(words)}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page, or check it."""
    page = render()
    if "--check" not in sys.argv:
        TARGET.write_text(page, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != page:
        sys.exit(f"{TARGET} is stale: run `make docs`")


if __name__ == "__main__":
    main()
