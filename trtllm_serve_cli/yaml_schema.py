"""Parse YAML into nested dataclasses and render dataclasses as YAML.

The field annotations of a dataclass are the schema. Error messages contain line numbers. A field
can be None if its annotation allows None. Otherwise, it has one of these types:

- a string, a number, a boolean or a path
- a choice (`Literal` or `OneOf`)
- a list of strings (a tuple)
- a mapping of strings to strings (`Mapping`)
- another dataclass

Strings are read exactly as written: the version 1.10 does not become the number 1.1. `Within`
limits the range of a number. `PartOf` requires the keys of a mapping to be field names of a class.
`CheckedBy` sets the function that validates the items of a mapping.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.option_fields import (
    CheckedBy,
    OneOf,
    PartOf,
    Within,
    find_annotation,
    option_fields,
    split_hint,
)

T = TypeVar("T")
_TEXT = "tag:yaml.org,2002:str"
_BOOLEANS = {"true": True, "false": False}
_KINDS = {
    str: "a string",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    Path: "a path",
}


def parse_yaml(cls: type[T], text: str, *, where: str) -> T:
    """Parse `text` as YAML and return an instance of `cls`.

    Raise `BadInput` if `text` is not valid. The error message contains the file name `where` and
    the line number of the error, if known.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _bad_input(
            where,
            line,
            f"the file is not valid YAML ({error.problem})",
            "correct the YAML syntax",
        ) from error
    except yaml.YAMLError as error:
        raise BadInput(
            f"{where} is not valid YAML.",
            why=" ".join(str(error).split()),
            next_step="correct the YAML syntax",
        ) from error
    except RecursionError as error:
        raise BadInput(
            f"{where} is nested too deeply.",
            why="the YAML parser does not support this nesting depth",
            next_step="reduce the number of nested levels",
        ) from error
    if node is None:
        raise _bad_input(where, 1, "the file is empty", f"add the fields {_list_fields(cls)}")
    return typing.cast("T", _Reader(where).read(node, cls, ""))


def parse_text_fields(cls: Any, words: Mapping[str, str], *, where: str) -> dict[str, Any]:
    """Convert the text values in `words` to the types of the fields of `cls`.

    Both `words` and the result are keyed by field name. List items are separated by commas. Raise
    `BadInput` if a field is unknown or has an invalid value.
    """
    pairs = []
    lists = {each.name for each in option_fields(cls) if each.is_list}
    for name, text in words.items():
        items = [yaml.ScalarNode(_TEXT, item.strip()) for item in text.split(",")]
        is_list = name in lists
        value = yaml.SequenceNode(_TEXT, items) if is_list else yaml.ScalarNode(_TEXT, text)
        pairs.append((yaml.ScalarNode(_TEXT, name), value))
    node = yaml.MappingNode("tag:yaml.org,2002:map", pairs)
    return _Reader(where).read_fields(node, cls, "")


def render_yaml(value: Any) -> str:
    """Render a dataclass as YAML, without fields that have their default values."""
    return yaml.safe_dump(plain_changes(value), sort_keys=False, allow_unicode=True, width=100)


def plain_changes(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, converted to YAML-compatible values."""
    changes: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        known = getattr(value, each.name)
        if dataclasses.is_dataclass(known):
            if inner := plain_changes(known):
                changes[each.name] = inner
        elif known != _default(each):
            changes[each.name] = _plain(known)
    return changes


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(value: Any) -> Any:
    match value:
        case Path():
            return str(value)
        case tuple():
            return list(value)
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
    return value


class _Reader:
    """A reader for the YAML nodes of one file.

    The parameter `at` is the path of a node, with the keys separated by dots.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def read(self, node: yaml.Node, hint: Any, at: str) -> Any:
        """Return the value of `node`, converted to the type `hint`."""
        hint, is_optional, annotations = split_hint(hint)
        if is_optional and node.tag == "tag:yaml.org,2002:null":
            return None
        if part := find_annotation(annotations, PartOf):
            return self.read_fields(node, part.options, at)
        if within := find_annotation(annotations, Within):
            return self._read_within(node, hint, within, at)
        if one_of := find_annotation(annotations, OneOf):
            return self._read_choice(node, one_of.choices, at)
        origin = get_origin(hint)
        if origin is Literal:
            return self._read_choice(node, get_args(hint), at)
        if origin is tuple:
            items = node.value if isinstance(node, yaml.SequenceNode) else [node]
            return tuple(self.read(item, get_args(hint)[0], at) for item in items)
        if dataclasses.is_dataclass(hint):
            return self._read_section(node, hint, at)
        if origin is not None and issubclass(origin, Mapping):
            return self._read_table(node, find_annotation(annotations, CheckedBy), at)
        return self._read_scalar(node, hint, at)

    def _read_section(self, node: yaml.Node, cls: Any, at: str) -> Any:
        values = self.read_fields(node, cls, at)
        for each in dataclasses.fields(cls):
            is_needed = each.default is each.default_factory is dataclasses.MISSING
            if is_needed and each.name not in values:
                raise self._bad_input(node, f"{_join(at, each.name)} is missing", "add the field")
        return cls(**values)

    def read_fields(self, node: yaml.Node, cls: Any, at: str) -> dict[str, Any]:
        """Return the values of the mapping `node`. Its keys must be field names of `cls`."""
        hints = typing.get_type_hints(cls, include_extras=True)
        values = {}
        for key, value in self._pairs(node, at):
            if key.value not in hints:
                near = difflib.get_close_matches(key.value, hints, n=1)
                raise self._bad_input(
                    key,
                    f"{_join(at, key.value)!r} is not a known field",
                    f"use {near[0]} instead" if near else f"use one of {_list_fields(cls)}",
                )
            values[key.value] = self.read(value, hints[key.value], _join(at, key.value))
        return values

    def _read_table(self, node: yaml.Node, checked: CheckedBy | None, at: str) -> dict[str, str]:
        table = {}
        for key, node_of_value in self._pairs(node, at):
            value = self.read(node_of_value, str, _join(at, key.value))
            if checked is not None:
                try:
                    checked.check(key.value, value)
                except BadInput as error:
                    raise BadInput(
                        f"{_place(self.where, _line(key))}: {error.what}",
                        why=error.why,
                        next_step=error.next_step,
                    ) from error
            table[key.value] = value
        return table

    def _pairs(self, node: yaml.Node, at: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._bad_input(
                node, f"{at or 'the file'} must be a mapping, but is {_describe(node)}"
            )
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._bad_input(
                    key,
                    f"each key of {at or 'the file'} must be a string, but a key is "
                    f"{_describe(key)}",
                )
            if key.value in seen:
                first = seen[key.value]
                raise self._bad_input(
                    key,
                    f"{_join(at, key.value)} is already set on line {first}",
                    "remove one of the two entries",
                )
            seen[key.value] = _line(key)
        return list(node.value)

    def _read_choice(self, node: yaml.Node, choices: tuple[str, ...], at: str) -> str:
        if isinstance(node, yaml.ScalarNode) and node.value in choices:
            return str(node.value)
        value = f" {node.value!r}" if isinstance(node, yaml.ScalarNode) else ""
        raise self._bad_input(
            node, f"{at} has an invalid value{value}", f"use one of {', '.join(choices)}"
        )

    def _read_scalar(self, node: yaml.Node, kind: type, at: str) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
            try:
                return _convert(node.value, kind)
            except (ValueError, KeyError):
                pass
        raise self._bad_input(node, f"{at} must be {_KINDS[kind]}, but is {_describe(node)}")

    def _read_within(self, node: yaml.Node, kind: type, within: Within, at: str) -> Any:
        value = self._read_scalar(node, kind, at)
        low, high = within.at_least, within.at_most
        if low <= value and (high is None or value <= high):
            return value
        takes = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise self._bad_input(node, f"{at} is out of range ({value})", f"set a number {takes}")

    def _bad_input(self, node: yaml.Node, what: str, next_step: str = "") -> BadInput:
        return _bad_input(self.where, _line(node), what, next_step)


def _convert(text: str, kind: type) -> Any:
    """Convert `text` to `kind`. Raise `ValueError` or `KeyError` if the text is not valid."""
    if kind is bool:
        return _BOOLEANS[text.lower()]
    value = kind(text)
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _line(node: yaml.Node) -> int:
    """Return the 1-based line number of a node, or 0 if the node is not from a file."""
    return node.start_mark.line + 1 if node.start_mark else 0


def _describe(node: yaml.Node) -> str:
    """Return the value of a scalar node, or the type of any other node, for an error message."""
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _bad_input(where: str, line: int, what: str, next_step: str = "") -> BadInput:
    return BadInput(f"{_place(where, line)}: {what}.", next_step=next_step or "correct the value")


def _place(where: str, line: int) -> str:
    return f"{where}, line {line}" if line else where


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _list_fields(cls: Any) -> str:
    return ", ".join(each.name for each in dataclasses.fields(cls))
