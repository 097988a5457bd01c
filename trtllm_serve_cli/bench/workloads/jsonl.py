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
    """One JSON object; `where` is the position where it starts (`file:line`)."""

    where: str
    fields: dict[str, Any]

    def refuse(self, why: str) -> BadInput:
        """Return an error about this object, which the caller raises."""
        has = ", ".join(self.fields) or "none"
        return BadInput(
            f"{self.where}: this entry is invalid.",
            why=f"{why}; its fields are {has}",
            next_step="fix that line; docs/guides/benchmark.md describes the supported formats",
        )

    def text(self, *names: str) -> str:
        """Return the first of the named fields that is set. Raise `BadInput` if it is not text."""
        value = self._first(names)
        if not isinstance(value, str):
            raise self.refuse(f"{' or '.join(names)} must be text")
        return value

    def count(self, *names: str) -> int:
        """Return the first of the named fields that is set.

        Raise `BadInput` if it is not an integer above 0.
        """
        value = self._first(names)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(f"{' or '.join(names)} must be an integer above 0")
        return value

    def number(self, name: str, least: float) -> float:
        """Return the field. Raise `BadInput` if it is not a finite number of at least `least`."""
        value = self._first((name,))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < least:
            raise self.refuse(f"{name} must be a number of at least {least:g}")
        return float(value)

    def has(self, *names: str) -> bool:
        return any(self.fields.get(name) is not None for name in names)

    def _first(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        raise self.refuse(f"{' or '.join(names)} is missing")


def read_objects(file: Path) -> list[Line]:
    """Read a file with a JSON array or JSONL. Raise `BadInput` with the file and the line."""
    text = _read(file)
    if text.lstrip().startswith("["):
        return list(_parse_array(file, text))
    return list(_parse_lines(file, text))


def read_jsonl(file: Path) -> list[Line]:
    """Read a JSONL file, skipping empty lines. Raise `BadInput` with the file and the line."""
    return list(_parse_lines(file, _read(file)))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"{file} cannot be read.",
            why=why,
            next_step="check the path; the file must be UTF-8 text",
        ) from error


def _parse_lines(file: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{file}:{number}"
            value, end = _decode(where, line, 0)
            if line[end:].strip():
                raise Line(where, {}).refuse("the line has more than one object")
            yield _as_line(where, value)


def _parse_array(file: Path, text: str) -> Iterator[Line]:
    """Parse the array element by element, because `json` does not report elements' positions."""
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
            f"{where}: this is not valid JSON.",
            why=str(error),
            next_step="fix that line, or check that this is the right file",
        ) from error


def _as_line(where: str, value: Any) -> Line:
    if not isinstance(value, dict):
        raise Line(where, {}).refuse("it is not a JSON object")
    return Line(where, value)
