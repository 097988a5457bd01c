"""Why a step of a build failed, in plain words: out of its exit code and its output."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Explanation:
    """`name` is that of an entry of failures.yaml; `line` is what told, empty for a signal."""

    name: str
    why: str
    next_step: str
    line: str = ""


# The signals SIGILL, SIGBUS and SIGKILL of Linux, some of which Windows does not even know: how a
# process ends without saying so -> the entry that explains it.
_SIGNALS = {
    4: ("illegal_instruction", ""),
    7: ("shared_memory", ""),
    9: ("host_memory", "it was killed, as the kernel does when memory runs out"),
}


def explain_failure(
    code: int, lines: Sequence[str], *, among: Collection[str] = ()
) -> Explanation | None:
    """What `lines`, a step's output, and its exit code tell; None when that is nothing known.

    A negative `code` is a signal, as is one above 128 of a shell. The last line that says something
    known decides, since programs go on to complain about what their first failure did; but a killed
    program said nothing of it. `among` are the names of the only entries to look for.
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
    """The table, its signs as one pattern each."""
    import yaml

    file = resources.files("trtllm_serve_cli.build") / "failures.yaml"
    return tuple(
        (
            Explanation(entry["name"], entry["why"], entry["next_step"]),
            re.compile("|".join(f"(?:{pattern})" for pattern in entry["patterns"])),
        )
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
    )
