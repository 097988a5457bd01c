"""Describe the machine that builds or serves an engine, as far as engine kinds depend on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs by their drivers' names, and the installed packages of engines.

    `versions` maps a distribution to its version in this Python; `pythons` maps a distribution that
    may run in another Python to the interpreter that has it.
    """

    gpus: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    pythons: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus_in_words(self) -> str:
        """The GPUs as text, for example "4 x NVIDIA H200"."""
        return " and ".join(f"{count} x {name}" for name, count in Counter(self.gpus).items())


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine kind, a sentence with the reason for it, and the Python that has its package.

    `python` is empty if the engine runs in the Python of Triton.
    """

    kind: str
    reason: str
    python: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of `tllm doctor`.

    A "note" does not prevent a server from running; a "problem" does, and `fix` is its remedy.
    """

    what: str
    verdict: Verdict
    detail: str
    fix: str = ""
