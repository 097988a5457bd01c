"""Set the placeholders for option and argument values in help texts.

Typer versions use different placeholders, for example `INTEGER RANGE` or `<int range>`, and `[a|b]`
or `<a|b>`. This module makes help texts independent of the Typer version.
"""

from __future__ import annotations

from functools import partial
from typing import Any

# Maps words in Typer's type names to the words that Click uses.
_TYPE_WORDS = {"int": "INTEGER", "str": "TEXT"}


def set_metavars(command: Any) -> None:
    """Replace Typer's placeholders for the option and argument values of a Click command."""
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        metavar = _argument_metavar(parameter) if is_argument else _option_metavar(parameter)
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
