"""Draw docs/images/demo.svg from the transcript in docs/guides/laptop.md.

    python docs/picture.py

It shows the commands that ask, measure and watch, as they looked on the machine of the transcript.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
SHOWN = ("$ tllm infer", "$ tllm status")


def read_transcript(page: str) -> list[str]:
    """Return the lines of the first block from the first command of `SHOWN` to the second."""
    block = page.split("```text\n", 1)[1].split("```", 1)[0]
    lines = block.splitlines()
    start, end = (
        next(number for number, line in enumerate(lines) if line.startswith(mark)) for mark in SHOWN
    )
    return lines[start:end]


def draw(lines: list[str]) -> str:
    """Draw the lines as an SVG of a terminal that loads no fonts."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    for line in lines:
        style = "bold green" if line.startswith("$ ") else ""
        console.print(Text(line.rstrip(), style=style), soft_wrap=False)
    svg = console.export_svg(title="tllm", unique_id="tllm")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    """Draw the picture."""
    page = (HERE / "guides" / "laptop.md").read_text(encoding="utf-8")
    target = HERE / "images" / "demo.svg"
    target.write_text(draw(read_transcript(page)), encoding="utf-8")


if __name__ == "__main__":
    main()
