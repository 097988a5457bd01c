"""Render tables and pages of Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1]


def render_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = tuple(columns)
    lines = (columns, ("---",) * len(columns), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_in(page: Path, parts: Mapping[str, str]) -> str:
    """Return the page with each part inserted between `<!-- name -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            sys.exit(f"{page} has no place for {name}")
        text = f"{before}{begin}{part}{end}{after}"
    return text
