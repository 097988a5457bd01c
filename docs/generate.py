"""Writes the pages that the code knows better than anybody.

    python docs/generate.py [--check]

docs/commands.md is the reference of all commands, out of their `--help`; docs/engines.md tells what
each engine kind can do, out of `runtime/engines/features.py`.
With `--check` nothing is written, and the
exit code is 1 when a page is not what it would be.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trtllm_serve_cli.runtime.engines.features import ENGINE_KINDS, FEATURES, Feature

HERE = Path(__file__).parent
COMMANDS = (
    (),
    ("import",),
    ("build",),
    ("plan",),
    ("list",),
    ("show",),
    ("set",),
    ("validate",),
    ("remove",),
    ("start",),
    ("stop",),
    ("restart",),
    ("status",),
    ("logs",),
    ("load",),
    ("unload",),
    ("infer",),
    ("bench",),
    ("bench", "token-norm-dist"),
    ("bench", "token-from-histogram"),
    ("bench", "dataset"),
    ("bench", "end-to-end"),
    ("bench", "shared-prefix"),
    ("bench", "multi-turn"),
    ("bench", "identity"),
    ("bench", "trace"),
    ("bench", "calibrate"),
    ("metrics",),
    ("metrics", "export"),
    ("lora", "convert"),
    ("doctor",),
)


def help_of(words: tuple[str, ...]) -> str:
    """The help text of one command, 80 columns wide."""
    environ = {**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    command = (sys.executable, "-m", "trtllm_serve_cli.cli.main", *words, "--help")
    text = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    return text.replace("python -m trtllm_serve_cli.cli.main", "tllm").rstrip()


def render_commands() -> str:
    """The whole of commands.md."""
    parts = ["# Commands\n\nGenerated from `--help` by `make docs`.\n"]
    for words in COMMANDS:
        title = " ".join(["tllm", *words])
        parts.append(f"## {title}\n\n```text\n{help_of(words)}\n```\n")
    return "\n".join(parts)


ENGINES = """\
# What each engine kind can do

Generated from `runtime/engines/features.py` by `make docs`; requests are answered by it.
A request that asks for what its engine kind cannot do gets one error that names the tensor, the
engine kind, and the kinds that can. Zero, false and empty ask for nothing, so clients that always
send a tensor still work. A column is as good as the kind itself: what `tensorrt` says is what
NVIDIA's backend documents, of `tensorrt_llm` itself: the text models pass on what is text.
"""


def render_engines() -> str:
    """The whole of engines.md."""
    rows = [("What", *(f"`{kind}`" for kind in ENGINE_KINDS), "Asked for by")]
    rows.append(tuple("---" for _ in rows[0]))
    rows += [
        (
            feature.name,
            *("no" if kind in feature.without else "yes" for kind in ENGINE_KINDS),
            ", ".join(f"`{tensor}`" for tensor in feature.tensors),
        )
        for feature in FEATURES
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    details = "\n".join(filter(None, map(describe, FEATURES)))
    return f"{ENGINES}\n{table}\n\n## In detail\n\n{details}\n"


def describe(feature: Feature) -> str:
    """How an engine kind differs from TensorRT-LLM, or why it cannot do something."""
    said = [f"{kind}: no, {why}" for kind, why in feature.without.items()]
    if feature.note:
        said.append(feature.note)
    return f"- **{feature.name}**: {'; '.join(said)}." if said else ""


PAGES = {"commands.md": render_commands, "engines.md": render_engines}


def main() -> None:
    """Write the pages, or check them."""
    for name, render in PAGES.items():
        target, page = HERE / name, render()
        if "--check" not in sys.argv:
            target.write_text(page, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != page:
            sys.exit(f"{target} is stale: run `make docs`")


if __name__ == "__main__":
    main()
