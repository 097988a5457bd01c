"""Generate the tables in exit-codes.md."""

from __future__ import annotations

from collections.abc import Iterator

from generators.markdown import DOCS, fill_in, render_table
from trtllm_serve_cli.cli.shared.exits import MEANINGS
from trtllm_serve_cli.errors import TllmError


def render_exit_codes() -> str:
    """Return exit-codes.md with its tables of codes and of the errors with exit code 3."""
    codes = ((str(int(code)), meaning.replace("|", r"\|")) for code, meaning in MEANINGS.items())
    errors = ((f"`{kind.__name__}`", cause_of(kind)) for kind in list_kinds(TllmError))
    tables = {
        "codes": render_table(("Code", "Meaning"), codes),
        "errors": render_table(("Error", "Cause"), errors),
    }
    return fill_in(DOCS / "reference" / "exit-codes.md", tables)


def list_kinds(base: type[TllmError]) -> Iterator[type[TllmError]]:
    """Yield the subclasses of an error, each before its own subclasses."""
    for kind in base.__subclasses__():
        yield kind
        yield from list_kinds(kind)


def cause_of(kind: type[TllmError]) -> str:
    """Return when an error is raised, from its docstring, as a sentence."""
    cause = (kind.__doc__ or "").removeprefix("Raised if ").replace(", or if ", ", or ")
    return cause[:1].upper() + cause[1:]
