"""Set the placeholders for option and argument values in help texts.

Typer versions use different placeholders, for example `INTEGER RANGE` or `<int range>`, and `[a|b]`
or `<a|b>`. This module makes help texts independent of the Typer version.
"""

from __future__ import annotations

from functools import partial
from typing import Any

# The choices of an option are part of its help text, not of its placeholder, if the line with the
# option's names and its placeholder would not fit into a terminal of 80 columns.
_MAX_LINE = 80
# Maps words in Typer's type names to the words that Click uses.
_TYPE_WORDS = {"int": "INTEGER", "str": "TEXT"}


def set_metavars(command: Any) -> None:
    """Replace Typer's placeholders for the option and argument values of a Click command."""
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        metavar = _argument_metavar(parameter) if is_argument else _option_metavar(parameter)
        if not is_argument and len(f"  {', '.join(parameter.opts)} {metavar}") > _MAX_LINE:
            metavar = parameter.opts[-1].lstrip("-").upper()
            choices = f"Choices: {', '.join(parameter.type.choices)}."
            if choices not in parameter.help:
                parameter.help += f" {choices}"
        parameter.make_metavar = partial(_return_metavar, metavar)


def _argument_metavar(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _option_metavar(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    if choices := getattr(option.type, "choices", None):
        return f"[{'|'.join(choices)}]"
    return " ".join(_TYPE_WORDS.get(word, word.upper()) for word in option.type.name.split())


def _return_metavar(metavar: str, ctx: Any, usage: bool = False) -> str:
    return metavar
