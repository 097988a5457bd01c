"""Checks the language of the package, its tests and its documents; `make lint` runs it.

    python docs/check_language.py [PATH ...]

It reads names, strings, docstrings and comments of Python files and the prose of Markdown files,
and prints one line for each match: PATH:LINE: what to write instead.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("trtllm_serve_cli", "tests", "benchmarks", "docs", "examples", "templates")
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("Makefile", "pyproject.toml", "mkdocs.yml", ".ci/run"),
)
# Pages of docs/reference that are generated as a whole.
GENERATED = tuple(
    f"docs/reference/{name}"
    for name in (
        *("capabilities.md", "commands.md", "modules.md", "openai-parameters.md"),
        *("parameters.md", "tensors.md", "tllm.schema.json"),
    )
)
MOST_WORDS = 35


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of the text, and what to write instead."""

    pattern: re.Pattern[str]
    advice: str


def _rule(pattern: str, advice: str) -> Rule:
    return Rule(re.compile(pattern), advice)


ANYWHERE = (
    _rule(r"(?i)\b(whoever|whom|nobody|somebody|anybody)\b", "name the actor"),
    _rule(r"(?i)\banew\b", "'again'"),
    _rule(r"(?i)\bmend(s|ed|ing)?\b", "'fix'"),
    _rule(r"(?i)\b(heed(s|ed)?|unheeded)\b", "'apply to' or 'use'"),
    _rule(r"(?i)\bfor ever\b", "'forever' or 'without a limit'"),
    _rule(r"(?i)\bat once\b", "'immediately' or 'at the same time'"),
    _rule(r"(?i)\bbeside\b", "'next to', 'with' or 'in addition to'"),
    _rule(r"(?i)\bof (its|their|his|her) own\b", "'its own X'"),
    _rule(r"(?i)\bof (theirs|hers|his|ours|yours)\b", "name the owner"),
    _rule(r"(?i)\bthat which\b", "name the thing"),
    _rule(r"\b[Tt]here (is|are) none\b", "negate with a verb: 'is missing'"),
    _rule(r"(?i)(?<!there )\b(is|are|was|were) no (?!longer|more|less|such)", "'is not a'"),
    _rule(r"\b(is|are|was|were) none\b", "negate with a verb"),
    _rule(r"(?i)\b(says?|said|saying|tells?|told|telling)\b", "'reports', 'logs' or 'sends'"),
    _rule(r"(?i)\b(hears?|heard)\b", "'receives'"),
    _rule(r"(?i)\b(wants?|wanted)\b", "'requires', 'requests' or 'expects'"),
    _rule(r"(?i)\b(asks|asked)\b", "'requests', 'queries' or 'sends'"),
    _rule(r"(?i)\bgoes on\b|\bgo on\b|\bwent on\b|\bgoing on\b", "'continue' or 'resume'"),
    _rule(r"(?i)\bguests?\b", "'client'"),
    _rule(r"\bSuch as\b", "name the thing first"),
)  # fmt: skip
NAMES = _rule(
    r"^given$|(?:^|_)(asked|said|told|tell|says?|hear|heard|wanted|wants|whoever|whom|nobody|somebody"
    r"|anybody|anew|mend|mends|guests?|heeds?|beside)(?:_|$)",
    "name the thing or the action",
)
DOCSTRING_START = _rule(
    r"(?i)^(what|whether|how|when|where|who|whose|which|as|of|for|to|it|they|them|its|their|"
    r"nothing|none|without|with|in|by|on|at|after|before|so|only|made|there|because|if|until)\b",
    "start with a verb or a noun that names the thing",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text of the project, and the line on which it starts."""

    path: Path
    line: int
    text: str
    is_docstring: bool = False
    is_prose: bool = False
    is_name: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the project's language.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    paths = parser.parse_args().paths or [ROOT / each for each in (*FOLDERS, *PAGES)]
    findings = [each for path in paths for each in check_path(path.resolve())]
    for each in findings:
        print(each)
    sys.exit(1 if findings else 0)


def check_path(path: Path) -> Iterator[str]:
    """Yield one line for each match in a file, or in all files of a folder."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        name = _name_of(file)
        if name.startswith(GENERATED) or file == Path(__file__).resolve():
            continue
        for passage in read_passages(file):
            for line, advice in check(passage):
                yield f"{name}:{line}: {advice}"


def check(passage: Passage) -> Iterator[tuple[int, str]]:
    """Yield the line and the advice of each match in a passage."""
    if passage.is_name:
        if NAMES.pattern.search(passage.text.lower()):
            yield passage.line, f"the name {passage.text}: {NAMES.advice}"
        return
    for rule in ANYWHERE:
        for match in rule.pattern.finditer(passage.text):
            line = passage.line + passage.text[: match.start()].count("\n")
            yield line, f"{match.group().strip()!r}: {rule.advice}"
    if passage.is_docstring and (match := DOCSTRING_START.pattern.match(passage.text.strip())):
        yield passage.line, f"{match.group()!r}: {DOCSTRING_START.advice}"
    if passage.is_prose:
        for sentence in re.split(r"(?<=[.:;!?])\s+", passage.text):
            if (words := len(sentence.split())) > MOST_WORDS:
                yield passage.line, f"a sentence of {words} words: {sentence[:40]!r}…"


def read_passages(path: Path) -> Iterator[Passage]:
    """Yield the text of a Python or Markdown file, without code, or all of another file."""
    if path.suffix == ".py":
        yield from _read_python(path)
    elif path.suffix == ".md":
        yield from _read_markdown(path)
    elif path.suffix in (".yaml", ".yml", ".j2", ".sh", ".toml") or path.name in (
        "Makefile",
        "run",
    ):
        yield Passage(path, 1, path.read_text(encoding="utf-8"))


def _read_python(path: Path) -> Iterator[Passage]:
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            docstrings.add(id(statement.value))
    for node in ast.walk(tree):
        if isinstance(node, documented[1:]):
            yield Passage(path, node.lineno, node.name, is_name=True)
        elif isinstance(node, ast.arg):
            yield Passage(path, node.lineno, node.arg, is_name=True)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Passage(path, node.lineno, node.id, is_name=True)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = id(node) in docstrings
            if is_docstring or " " in node.value:
                yield Passage(path, node.lineno, node.value, is_docstring)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(path, token.start[0], token.string)


def _read_markdown(path: Path) -> Iterator[Passage]:
    """Yield paragraphs, list items and cells of tables, without code."""
    lines: list[str] = []
    start, is_code = 1, False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        is_fence = line.lstrip().startswith("```")
        starts_item = re.match(r"\s*([-*#|>]|\d+\.)", line)
        if lines and (is_fence or starts_item or not line.strip()):
            yield _paragraph(path, start, lines)
            lines = []
        if is_fence:
            is_code = not is_code
        elif not is_code and line.strip():
            if line.lstrip().startswith("|"):
                for cell in line.split("|"):
                    yield _paragraph(path, number, [cell])
                continue
            start = start if lines else number
            lines.append(line)
    if lines:
        yield _paragraph(path, start, lines)


def _paragraph(path: Path, line: int, lines: list[str]) -> Passage:
    text = re.sub(r"`[^`\n]*`", "`code`", "\n".join(lines))
    return Passage(path, line, text, is_prose=True)


def _name_of(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    main()
