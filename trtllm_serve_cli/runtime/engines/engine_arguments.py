"""What an engine's package is loaded with, and which of it `config.pbtxt` has as parameters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]
Read = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class ArgumentTable:
    """Parameter -> argument, those of the second level as `key.key`, and how its text is read.

    `rest` is the parameter for all that no other is for, as a JSON object.
    """

    rest: str
    rows: Mapping[str, tuple[str, Read]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all, and of the rest."""
        return (*self.rows, self.rest)

    def read(self, parameters: Mapping[str, str]) -> Arguments:
        """The arguments that the entries of a `config.pbtxt` say; what is empty is not said.

        Raises `ValueError` for an entry that cannot be read.
        """
        arguments: Arguments = json.loads(parameters.get(self.rest) or "{}")
        for parameter, (argument, read) in self.rows.items():
            if not (text := parameters.get(parameter, "")):
                continue
            try:
                value = read(text)
            except ValueError as error:
                raise ValueError(f"{parameter} is {text!r}: {error}") from error
            parent, _, key = argument.rpartition(".")
            if parent:
                arguments[parent] = {**arguments.get(parent, {}), key: value}
            else:
                arguments[key] = value
        return arguments

    def write(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The entries of a `config.pbtxt` that say `arguments`; `read` is the way back."""
        rest = {key: dict(value) if isinstance(value, dict) else value
                for key, value in arguments.items()}  # fmt: skip
        entries: dict[str, str] = {}
        for parameter, (argument, _) in self.rows.items():
            parent, _, key = argument.rpartition(".")
            group = rest.get(parent) if parent else rest
            if not isinstance(group, dict) or group.get(key) is None:
                continue
            entries[parameter] = _format(group.pop(key))
            if parent and not group:
                del rest[parent]
        return {**entries, self.rest: json.dumps(rest, sort_keys=True)}


def merge_arguments(one: Mapping[str, Any], other: Mapping[str, Any]) -> Arguments:
    """`one`, but where `other` says something else; groups of the second level are merged."""
    merged = dict(one)
    for key, value in other.items():
        current = merged.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            merged[key] = {**current, **value}
        else:
            merged[key] = value
    return merged


@contextlib.contextmanager
def explaining_refusals(package: str) -> Iterator[None]:
    """Raise `ValueError` that says in one line which arguments the package's Pydantic refused."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, "errors"):
            raise
        # Its own text ends with where to read more.
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise ValueError(f"{package} does not take the model's arguments: {problems}") from error


def read_flag(text: str) -> bool:
    """Of a parameter that is true or false."""
    return text.lower() in ("1", "true")


def read_numbers(text: str) -> list[int]:
    """Of a parameter that is a list, such as 4096,1024."""
    return [int(number) for number in text.split(",")]


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
