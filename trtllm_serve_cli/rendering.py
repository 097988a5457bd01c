"""Render the Jinja templates in the `templates` folder."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, /, **variables: object) -> str:
    """Render the template at the path `name`, for example "slurm/job.sbatch.j2".

    Raise `jinja2.UndefinedError` if the template uses a variable that is not in `variables`.
    """
    return _environment().get_template(name).render(variables)


def read_template(name: str) -> str:
    """Return the source text of the template at the path `name`."""
    return (_find_templates() / name).read_text(encoding="utf-8")


def quote_pbtxt(text: str) -> str:
    """Return `text` as a string literal in the protobuf text format."""
    from google.protobuf import text_encoding

    return '"' + str(text_encoding.CEscape(text.encode(), False)) + '"'


def quote_shell(value: object) -> str:
    """Quote `value`, so that the shell treats it as one word."""
    return shlex.quote(str(value))


@functools.cache
def _environment() -> Environment:
    # Import Jinja only here, because the import takes 0.1 s and most commands do not need it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_find_templates()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    )
    environment.filters |= {"quote_pbtxt": quote_pbtxt, "quote_shell": quote_shell}
    return environment


def _find_templates() -> Path:
    """Return the `templates` folder, which is outside the package in an editable installation."""
    package = Path(__file__).parent
    packaged = package / "templates"
    return packaged if packaged.is_dir() else package.parent / "templates"
