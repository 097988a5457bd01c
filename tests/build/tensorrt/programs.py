"""Parse command lines as TensorRT-LLM's programs do."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.flags import Flag, flags_of

_TYPES = {"str": str, "int": int, "float": float}


class ParseError(Exception):
    """Raised if the arguments are not valid. By default, argparse exits the process instead."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ParseError(message)


def parse_arguments(program: str, version: Version, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `arguments` as the program does. Return the values, keyed by argparse destination.

    Raise `ParseError` if the program rejects the arguments.
    """
    return vars(_parser_of(program, version).parse_args(arguments))


@functools.cache
def _parser_of(program: str, version: Version) -> argparse.ArgumentParser:
    parser = _Parser(prog=program, add_help=False, allow_abbrev=False)
    for flag in flags_of(program, version).values():
        _add(parser, flag)
    return parser


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    if flag.type == "flag":
        parser.add_argument(flag.name, action="store_true", required=flag.required)
        return
    parser.add_argument(
        flag.name,
        type=_TYPES[flag.type],
        choices=flag.choices or None,
        nargs=flag.nargs,
        default=flag.default,
        required=flag.required,
    )
