"""Draw texts of the package at random, to review its language.

    python docs/sample_texts.py [--seed N] [--number N]

The sample has as many docstrings, comments, help texts and error messages each, with the place of
each text.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "trtllm_serve_cli"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Classes and functions that make an error, which the code returns or raises. The function
# `read_texts` finds the other functions where their result is raised.
ERRORS = (
    "BadInput", "BadParameter", "InvalidRequest", "MissingPart", "NoServer", "RequestFailed",
    "invalid", "rejected", "unavailable",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw texts of the package at random.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=100)
    options = parser.parse_args()
    texts: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind, line, text in read_texts(path):
            place = f"{path.relative_to(PACKAGE)}:{line}"
            texts.setdefault(kind, []).append((place, " ".join(text.split())))
    rng = random.Random(options.seed)
    number = 0
    for kind, all_texts in texts.items():
        for place, text in rng.sample(all_texts, options.number // len(texts)):
            number += 1
            print(f"{number}. {kind}, {place}\n   {text}")


def read_texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, line and text of each docstring, error message, help text and comment."""
    code = path.read_text(encoding="utf-8")
    tree = ast.parse(code)
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield "docstring", node.body[0].lineno, text
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            values = [*node.args, *(each.value for each in node.keywords)]
            written = " / ".join(text for each in values if (text := read_string(each)))
            is_error = id(node) in raised or name.endswith("Error") or name in ERRORS
            if written.count(" ") > 2 and is_error:
                yield "error", node.lineno, written
            elif written.count(" ") > 2 and name == "Option":
                yield "help", node.lineno, written
    yield from read_comments(code)


def read_string(node: ast.expr) -> str:
    """Return the text of a string or f-string, and nothing for other expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(read_string(each) or "{…}" for each in values)
        case ast.BinOp(left=left, right=right):
            return read_string(left) + read_string(right)
    return ""


def read_comments(code: str) -> Iterator[tuple[str, int, str]]:
    """Yield each block of comment lines as one text."""
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    ]
    starts = [token.start[0] for token in tokens]
    follows = {later for earlier, later in pairwise(starts) if later == earlier + 1}
    block: list[str] = []
    for token in reversed(tokens):
        block.insert(0, token.string.lstrip("# "))
        if token.start[0] not in follows:
            text = " ".join(block)
            is_read = not any(mark in text for mark in ("fmt:", "noqa", "type: ignore"))
            if is_read and text.count(" ") > 2:
                yield "comment", token.start[0], text
            block = []


if __name__ == "__main__":
    main()
