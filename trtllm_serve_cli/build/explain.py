"""Explain why a build step failed, based on its exit code and output."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a failed build step and its fix.

    `name` is the name of the matching failures.yaml entry. `line` is the output line that matched
    the entry, or empty if a signal ended the step.
    """

    name: str
    why: str
    next_step: str
    line: str = ""


# Maps SIGILL, SIGBUS and SIGKILL to an entry name in failures.yaml and a reason. If the reason is
# not empty, it replaces the entry's `why`. The keys are Linux signal numbers, because Python on
# Windows does not define all of these signals.
_SIGNALS = {
    4: ("illegal_instruction", ""),
    7: ("shared_memory", ""),
    9: ("host_memory", "the process was killed, probably because the machine ran out of memory"),
}


def explain_failure(
    code: int, lines: Sequence[str], *, among: Collection[str] = ()
) -> Explanation | None:
    """Return an explanation of a step's failure, or `None` if the cause is unknown.

    If a signal ended the step, `code` is negative, or above 128 if a shell reported the signal. A
    signal in `_SIGNALS` takes precedence over the output, because a killed program cannot log the
    cause. Otherwise, explain the last line in `lines` that matches an entry in failures.yaml. If
    `among` is not empty, use only the entries with these names.
    """
    name, why = _SIGNALS.get(-code if code < 0 else code - 128, ("", ""))
    if name and (not among or name in among):
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
