"""Look up the flags of TensorRT-LLM programs by version in `flags.yaml`.

A program is "trtllm-build", "quantize.py", or the converter for a family, for example
"llama/convert_checkpoint.py".
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import load_table
from trtllm_serve_cli.errors import BadInput

CONVERTER = "convert_checkpoint.py"
_TYPES = {"str": str, "int": int, "float": float}


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag, with the settings that `argparse` uses.

    A flag with the type "flag" takes no value. `default` is `None` if the default is unknown.
    """

    name: str
    type: str = "str"
    choices: tuple[str | int, ...] = ()
    nargs: str | None = None
    default: str | int | float | None = None
    required: bool = False
    aliases: tuple[str, ...] = ()


def flags_of(program: str, version: Version) -> Mapping[str, Flag]:
    """Return a program's flags by name, or an empty mapping if `version` lacks the program.

    For a pre-release, return only the flags that both the previous release and the final release
    support.
    """
    flags = _flags_at(program, version)
    if not version.is_prerelease:
        return flags
    later = _flags_at(program, Version(version.base_version))
    both = {name: _intersect(flag, later[name]) for name, flag in flags.items() if name in later}
    return MappingProxyType({name: flag for name, flag in both.items() if flag})


def check_arguments(program: str, version: Version, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `arguments` as the program does, and return the values by argparse destination.

    Raise `BadInput` if the program rejects the arguments.
    """
    try:
        return vars(_parser_of(program, version).parse_args(arguments))
    except _ParseError as error:
        raise BadInput(
            f"{program} of TensorRT-LLM {version} rejects these arguments.",
            why=str(error),
            next_step=f"run `{program} --help` to see the supported arguments",
        ) from error


class _ParseError(Exception):
    """Raised if the arguments are not valid. Without this class, argparse would end the process."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ParseError(message)


@functools.cache
def _parser_of(program: str, version: Version) -> argparse.ArgumentParser:
    parser = _Parser(prog=program, add_help=False, allow_abbrev=False)
    for flag in flags_of(program, version).values():
        _add(parser, flag)
    return parser


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    names = (flag.name, *flag.aliases)
    if flag.type == "flag":
        parser.add_argument(*names, action="store_true", required=flag.required)
        return
    parser.add_argument(
        *names,
        type=_TYPES[flag.type],
        choices=flag.choices or None,
        nargs=flag.nargs,
        default=flag.default,
        required=flag.required,
    )


@functools.cache
def _flags_at(program: str, version: Version) -> Mapping[str, Flag]:
    return MappingProxyType(
        {
            name: _parse(name, row)
            for name, row in _rows(program)
            if Version(row.get("since", "0")) <= version
            and ("before" not in row or version < Version(row["before"]))
        }
    )


def _rows(program: str) -> Iterator[tuple[str, dict[str, Any]]]:
    family, _, script = program.rpartition("/")
    for name, rows in _load()[script if family else program].items():
        for row in rows if isinstance(rows, list) else [rows]:
            if not family or family in row["in"]:
                yield name, row


@functools.cache
def _load() -> Any:
    return load_table("flags.yaml")


def _parse(name: str, row: Mapping[str, Any]) -> Flag:
    choices = row.get("choices", ())
    return Flag(
        name=name,
        type=row.get("type", "str"),
        choices=tuple(_load()["choices"][choices] if isinstance(choices, str) else choices),
        nargs=row.get("nargs"),
        default=row.get("default"),
        required=row.get("required", False),
        aliases=tuple(row.get("aliases", ())),
    )


def _intersect(one: Flag, other: Flag) -> Flag | None:
    """Return a flag for the values that both flags accept, or `None` if the types differ."""
    if (one.type, one.nargs) != (other.type, other.nargs):
        return None
    if one.choices and other.choices:
        choices = tuple(each for each in one.choices if each in other.choices)
    else:
        choices = one.choices or other.choices
    return replace(
        one,
        choices=choices,
        default=one.default if one.default == other.default else None,
        required=one.required or other.required,
        aliases=tuple(each for each in one.aliases if each in other.aliases),
    )
