"""Describe the GPUs and packages of a machine that builds or serves engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.errors import MissingPart

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's GPUs, memory and installed engine packages.

    - `gpus`: the GPU names that the driver reports.
    - `versions`: the versions of the engine packages installed for this Python, keyed by package
      name.
    - `pythons`: the interpreters of packages that may be installed for another Python, keyed by
      package name.
    - `host`: the machine's memory and threads, or None if unknown.
    """

    gpus: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    pythons: Mapping[str, str] = field(default_factory=dict)
    host: CpuHost | None = None

    @property
    def gpus_in_words(self) -> str:
        """The GPUs as text, for example "4 x NVIDIA H200"."""
        return " and ".join(f"{count} x {name}" for name, count in Counter(self.gpus).items())


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The chosen engine kind and a sentence that explains the choice.

    `python` is the interpreter that has the kind's package, or empty for Triton's Python. `missing`
    is the error to report if this machine lacks something that the kind needs. `missing` is set
    only for `--dry-run`.
    """

    kind: str
    reason: str
    python: str = ""
    missing: MissingPart | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of `tllm doctor`.

    `what` is the part of the machine that was checked, and `detail` is the result. The verdict
    "problem" means that a server cannot run. A "note" does not prevent a server from running. `fix`
    is a command or an instruction that solves the problem.
    """

    what: str
    verdict: Verdict
    detail: str
    fix: str = ""
