"""Convert between `config.pbtxt` parameters and an engine package's arguments."""

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
    """A table that maps `config.pbtxt` parameters to an engine package's arguments.

    `rows` maps each parameter to its argument name and the function that parses its value.
    Arguments in a group are named `group.key`. `rest` is the name of the parameter that contains
    all other arguments as a JSON object.
    """

    rest: str
    rows: Mapping[str, tuple[str, Read]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters, including `rest`."""
        return (*self.rows, self.rest)

    @property
    def _groups(self) -> set[str]:
        """The names of the argument groups in `rows`."""
        parents = (argument.rpartition(".")[0] for argument, _ in self.rows.values())
        return {parent for parent in parents if parent}

    def read(self, parameters: Mapping[str, str]) -> Arguments:
        """Return the arguments for `config.pbtxt` parameters, ignoring empty parameters.

        If an argument has a row and is also in the `rest` parameter, the row's parameter takes
        precedence. Raise `ValueError` if a parameter cannot be parsed.
        """
        arguments = self.read_rest(parameters)
        for parameter, (argument, read) in self.rows.items():
            if not (text := parameters.get(parameter, "")):
                continue
            try:
                value = read(text)
            except ValueError as error:
                raise ValueError(f"{parameter} has the invalid value {text!r}: {error}") from error
            parent, _, key = argument.rpartition(".")
            if parent:
                arguments[parent] = {**arguments.get(parent, {}), key: value}
            else:
                arguments[key] = value
        return arguments

    def read_rest(self, parameters: Mapping[str, str]) -> Arguments:
        """Return the arguments in the `rest` parameter, which may be missing or empty.

        Ignore groups that are null. Raise `ValueError` if the parameter is not a JSON object, or if
        a group in the parameter is neither a JSON object nor null.
        """
        text = parameters.get(self.rest) or "{}"
        try:
            arguments = json.loads(text)
            if not isinstance(arguments, dict):
                raise ValueError("the value is not a JSON object")
            for group in self._groups:
                if arguments.get(group) is None:
                    arguments.pop(group, None)
                elif not isinstance(arguments[group], dict):
                    raise ValueError(f"{group} is not a JSON object")
        except ValueError as error:
            raise ValueError(f"{self.rest} has the invalid value {text!r}: {error}") from error
        return arguments

    def write(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the `config.pbtxt` parameters for `arguments`, as the inverse of `read`."""
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
    """Merge two sets of arguments. Values in `other` override values in `one`.

    If both sets contain the same argument group, merge the groups.
    """
    merged = dict(one)
    for key, value in other.items():
        current = merged.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            merged[key] = {**current, **value}
        else:
            merged[key] = value
    return merged


@contextlib.contextmanager
def explaining_rejections(package: str) -> Iterator[None]:
    """Convert Pydantic errors from an engine package to a `ValueError` with a one-line message.

    The message names `package` and the rejected arguments. Other exceptions are not converted.
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, "errors"):
            raise
        # Do not use `str(error)`, because Pydantic adds a documentation link to each problem.
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise ValueError(f"{package} rejects the model's arguments: {problems}") from error


def read_flag(text: str) -> bool:
    """Parse a boolean parameter, ignoring case.

    Raise `ValueError` unless the text is 0, 1, false or true.
    """
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("the value must be true or false")
    return text.lower() in ("1", "true")


def read_numbers(text: str) -> list[int]:
    """Parse a comma-separated list of integers, such as 4096,1024.

    Raise `ValueError` if an item is not an integer.
    """
    return [int(number) for number in text.split(",")]


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
