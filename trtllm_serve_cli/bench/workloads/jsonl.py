"""Read objects from JSON and JSONL files, with their positions for error messages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import BadInput


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON object and its position, for error messages.

    `where` has the form `file:line` or, for a Hugging Face data set, `source[index]`.
    """

    where: str
    fields: dict[str, Any]

    def refuse(self, why: str) -> BadInput:
        """Return a `BadInput` error about this object, for the caller to raise."""
        fields = f" (fields: {', '.join(self.fields)})" if self.fields else ""
        return BadInput(
            f"The entry at {self.where} is invalid.",
            why=f"{why}{fields}",
            next_step="correct the entry (docs/guides/benchmark.md describes the formats)",
        )

    def text(self, *names: str) -> str:
        """Return the value of the first field in `names` that is set.

        Raise `BadInput` if no field is set or if the value is not a string.
        """
        name, value = self._first(names)
        if not isinstance(value, str):
            raise self.refuse(f"the {name} field must be a string, but is {value!r:.80}")
        return value

    def count(self, *names: str) -> int:
        """Return the value of the first field in `names` that is set.

        Raise `BadInput` if no field is set or if the value is not a positive integer.
        """
        name, value = self._first(names)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(f"the {name} field must be a positive integer, but is {value!r:.80}")
        return value

    def number(self, name: str, least: float) -> float:
        """Return the value of a field.

        Raise `BadInput` if the field is not set, or if its value is not a finite number of at least
        `least`.
        """
        _, value = self._first((name,))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < least:
            raise self.refuse(
                f"the {name} field must be a finite number of at least {least:g}, but is "
                f"{value!r:.80}"
            )
        return float(value)

    def has(self, *names: str) -> bool:
        return any(self.fields.get(name) is not None for name in names)

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.fields.get(name) is not None:
                return name, self.fields[name]
        raise self.refuse(f"the {' or '.join(names)} field is missing")


def read_objects(file: Path) -> list[Line]:
    """Read the objects in a file that contains a JSON array or JSONL.

    Raise `BadInput` if the file cannot be read or its content is invalid. The error names the file
    and, for invalid content, the line.
    """
    text = _read(file)
    if text.lstrip().startswith("["):
        return list(_parse_array(file, text))
    return list(_parse_lines(file, text))


def read_jsonl(file: Path) -> list[Line]:
    """Read the objects in a JSONL file. Skip empty lines.

    Raise `BadInput` if the file cannot be read or its content is invalid. The error names the file
    and, for invalid content, the line.
    """
    return list(_parse_lines(file, _read(file)))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"The file {file} cannot be read.",
            why=why,
            next_step="check that the path is correct and that the file contains UTF-8 text",
        ) from error


def _parse_lines(file: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{file}:{number}"
            value, end = _decode(where, line, 0)
            if line[end:].strip():
                raise Line(where, {}).refuse("the line contains more than one JSON value")
            yield _as_line(where, value)


def _parse_array(file: Path, text: str) -> Iterator[Line]:
    """Parse the elements one by one, because `json.loads` does not report positions."""
    position, number, counted_to = text.index("[") + 1, 1, 0
    while True:
        position = _skip(text, position, " \t\r\n,")
        number += text.count("\n", counted_to, position)
        counted_to, where = position, f"{file}:{number}"
        if text.startswith("]", position):
            return
        value, position = _decode(where, text, position)
        yield _as_line(where, value)


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _decode(where: str, text: str, position: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, _skip(text, position, " \t\r"))
    except ValueError as error:
        raise BadInput(
            f"The text at {where} is not valid JSON.",
            why=str(error),
            next_step="correct the line, or pass another file",
        ) from error


def _as_line(where: str, value: Any) -> Line:
    if not isinstance(value, dict):
        raise Line(where, {}).refuse("the entry is not a JSON object")
    return Line(where, value)
