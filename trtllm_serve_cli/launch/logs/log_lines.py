"""Determine the level and the model of each line in a server's log.

Triton, its model processes and the engine workers write to the same log. Lines from Triton,
TensorRT-LLM and tllm contain a level. For other lines, the level is inferred from keywords or from
the previous line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_serve_cli.launch.logs.triton_log import TLLM_PREFIX, TRITON_PREFIX

Level = Literal["error", "warning", "info"]

_LEVELS: dict[str, Level] = {"F": "error", "E": "error", "W": "warning", "I": "info"}
_SEVERITY: dict[Level, int] = {"info": 0, "warning": 1, "error": 2}
# Log prefixes of TensorRT-LLM's C++ and Python code.
_TRTLLM = re.compile(r"\[TensorRT-LLM\]\[(?P<word>[A-Z]+)\]|.*\[TRT-LLM\] \[(?P<letter>[A-Z])\]")
_WORDS: tuple[tuple[str, Level], ...] = (
    ("error", "error"), ("exception", "error"), ("fatal", "error"), ("warn", "warning"),
)  # fmt: skip
# Prefixes of the rows in Triton's tables, for example the table of its options.
_TABLE = ("+-", "| ")
_TRACEBACK = "Traceback (most recent call last):"
# Python prints lines with these prefixes between the tracebacks of chained exceptions.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# Patterns for a model name in Triton's messages. Triton logs the name in quotes, before a version
# or instance number, or in a path.
_MODEL_PATTERNS = (
    r"'{}'",
    r"(?<![\w.-]){}:-?\d+(?!\d)",
    r"(?<![\w.-]){}_\d+_\d+(?!\w)",
    r"/{}/\d+/",
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line. `model` is the Triton model that the line refers to, or None if unknown."""

    text: str
    level: Level
    model: str | None = None

    @property
    def is_in_table(self) -> bool:
        """True if the line is a row of one of Triton's tables."""
        return self.text.startswith(_TABLE)

    def is_at_least(self, level: Level) -> bool:
        return _SEVERITY[self.level] >= _SEVERITY[level]


class LogReader:
    """A parser for consecutive log lines. `models` are the names of the server's Triton models."""

    def __init__(self, models: Iterable[str]) -> None:
        # Try the longest name first, because one model name may contain another.
        self._model_patterns = [
            (model, re.compile("|".join(each.format(re.escape(model)) for each in _MODEL_PATTERNS)))
            for model in sorted(models, key=len, reverse=True)
        ]
        self._last = LogLine("", "info")
        # True if the next line is part of a traceback. A traceback ends with the exception, which
        # is the first line without indentation.
        self._is_in_traceback = False

    def read(self, text: str) -> LogLine:
        """Parse the next log line."""
        self._last = self._classify(text)
        return self._last

    def read_all(self, lines: Iterable[str]) -> Iterator[LogLine]:
        return map(self.read, lines)

    def _classify(self, text: str) -> LogLine:
        if text == _TRACEBACK:
            self._is_in_traceback = True
            return LogLine(text, "error")
        if found := TRITON_PREFIX.match(text):
            self._is_in_traceback = False
            level = _LEVELS[found["level"] or found["iso_level"]]
            return LogLine(text, level, self._find_model(text[found.end() :]))
        if found := TLLM_PREFIX.match(text):
            self._is_in_traceback = text[found.end() :] == _TRACEBACK
            return LogLine(text, _LEVELS[found["level"]], found["model"])
        if fields := _parse_json(text):
            self._is_in_traceback = False
            return LogLine(text, fields["level"], fields["model"])
        if self._continues_previous(text):
            return LogLine(text, self._last.level, self._last.model)
        if found := _TRTLLM.match(text):
            letter = found["letter"] or found["word"][0]
            return LogLine(text, _LEVELS.get(letter, "info"))
        return LogLine(text, _guess_level(text), self._find_model(text))

    def _continues_previous(self, text: str) -> bool:
        """Return whether a line without a prefix continues the previous line."""
        if self._is_in_traceback:
            self._is_in_traceback = not text or text[0].isspace()
            return True
        return not text or text[0].isspace() or text.startswith((*_TABLE, "At:", *_CHAINED))

    def _find_model(self, text: str) -> str | None:
        return next(
            (model for model, pattern in self._model_patterns if pattern.search(text)), None
        )


def _parse_json(text: str) -> dict[str, Any] | None:
    """Return the fields of a line that tllm's models log with `--log-format json`.

    Return None for other lines.
    """
    if not text.startswith('{"time": '):
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return fields if fields.get("level") in _SEVERITY and "model" in fields else None


def _guess_level(text: str) -> Level:
    start = text[:80].lower()
    return next((level for word, level in _WORDS if word in start), "info")
