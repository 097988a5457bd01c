"""Explain failures of build steps from their exit code and output."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a failure and its fix, from the entry `name` in failures.yaml.

    `line` is the output line that matched the entry, or empty if a signal ended the step.
    """

    name: str
    why: str
    next_step: str
    line: str = ""


# Signal -> entry in failures.yaml and its reason, or "" for the reason in the entry. SIGILL, SIGBUS
# and SIGKILL are given by their numbers on Linux, because Python on Windows lacks some names.
_SIGNALS = {
    4: ("illegal_instruction", ""),
    7: ("shared_memory", ""),
    9: ("host_memory", "it was killed, probably because the machine ran out of memory"),
}


def explain_failure(
    code: int, lines: Sequence[str], *, among: Collection[str] = ()
) -> Explanation | None:
    """Return the explanation of a step's exit code and output lines, or `None` if unknown.

    A signal that ended the step is explained first, because a killed program does not report the
    signal: `code` is then negative, or above 128 from a shell. Otherwise, the last line that
    matches an entry is explained. `among` names the entries to match; by default, all are matched.
    """
    if (number := -code if code < 0 else code - 128) in _SIGNALS:
        name, why = _SIGNALS[number]
        entry = next(entry for entry, _ in _load() if entry.name == name)
        return Explanation(name, why or entry.why, entry.next_step)
    for line in reversed(lines):
        for entry, patterns in _load():
            if (not among or entry.name in among) and patterns.search(line):
                return Explanation(entry.name, entry.why, entry.next_step, line.strip())
    return None


@cache
def _load() -> tuple[tuple[Explanation, re.Pattern[str]], ...]:
    """Return each entry of failures.yaml with its patterns compiled into one pattern."""
    import yaml

    file = resources.files("trtllm_serve_cli.build") / "failures.yaml"
    return tuple(
        (
            Explanation(entry["name"], entry["why"], entry["next_step"]),
            re.compile("|".join(f"(?:{pattern})" for pattern in entry["patterns"])),
        )
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
    )
