"""Look up the flags of TensorRT-LLM programs by version.

The flags are listed in `flags.yaml`, `flags_converters.yaml` and `flags_legacy.yaml`.

A program is "trtllm-build", "quantize.py", or a script for a family, for example
"llama/convert_checkpoint.py".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import load_table

CONVERTER = "convert_checkpoint.py"


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag with its `argparse` settings.

    A flag of type "flag" takes no value. `default` is `None` if the flag has no known default.
    """

    name: str
    type: str = "str"
    choices: tuple[str | int, ...] = ()
    nargs: str | int | None = None
    default: str | int | float | None = None
    required: bool = False


def flags_of(program: str, version: Version) -> Mapping[str, Flag]:
    """Return a program's flags, keyed by name. The mapping is empty if `version` lacks the program.

    For a pre-release, return only the flags and values that both the previous release and the final
    release support.
    """
    flags = _flags_at(program, version)
    if not version.is_prerelease:
        return flags
    later = _flags_at(program, Version(version.base_version))
    both = {name: _intersect(flag, later[name]) for name, flag in flags.items() if name in later}
    return MappingProxyType({name: flag for name, flag in both.items() if flag})


def find_flag(name: str, program: str, version: Version) -> Flag | None:
    """Return the program's flag with this name, or `None` if `version` does not have the flag.

    Hyphens and underscores in the name are equivalent.
    """
    flags = flags_of(program, version).values()
    return next((flag for flag in flags if _plain(flag.name) == _plain(name)), None)


def is_flag(name: str) -> bool:
    """Return whether any program in any TensorRT-LLM version has a flag with this name."""
    plain = _plain(name)
    tables = (table for key, table in _load().items() if key not in ("choices", "owned"))
    return any(_plain(flag) == plain for table in tables for flag in table)


def is_owned(name: str) -> bool:
    """Return whether the flag is reserved for tllm. Users cannot set reserved flags directly."""
    return _plain(name) in _owners()


def find_owner(name: str) -> str | None:
    """Return the tllm option that sets the flag, or `None` if no option sets the flag.

    `name` must be a flag that tllm sets.
    """
    return _owners()[_plain(name)]


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


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


@functools.cache
def _owners() -> Mapping[str, str | None]:
    return {_plain(name): owner for name, owner in _load()["owned"].items()}


@functools.cache
def _load() -> Any:
    converters = {CONVERTER: load_table("flags_converters.yaml")}
    return {**load_table("flags.yaml"), **converters, **load_table("flags_legacy.yaml")}


def _parse(name: str, row: Mapping[str, Any]) -> Flag:
    choices = row.get("choices", ())
    return Flag(
        name=name,
        type=row.get("type", "str"),
        choices=tuple(_load()["choices"][choices] if isinstance(choices, str) else choices),
        nargs=row.get("nargs"),
        default=row.get("default"),
        required=row.get("required", False),
    )


def _intersect(one: Flag, other: Flag) -> Flag | None:
    """Return a flag that accepts only values accepted by both flags.

    Return `None` if the flags differ in type or in number of values, or if no value is accepted by
    both flags.
    """
    if (one.type, one.nargs) != (other.type, other.nargs):
        return None
    if one.choices and other.choices:
        choices = tuple(each for each in one.choices if each in other.choices)
        if not choices:
            return None
    else:
        choices = one.choices or other.choices
    return replace(
        one,
        choices=choices,
        default=one.default if one.default == other.default else None,
        required=one.required or other.required,
    )
