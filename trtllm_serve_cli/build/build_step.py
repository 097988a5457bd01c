"""One command of a build, as data."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

# Stands in a command for the folder that is being made.
WORK = "{work}"
# A folder in it that nobody needs when the build has ended.
SCRATCH_NAME = ".scratch"
SCRATCH = f"{WORK}/{SCRATCH_NAME}"


@dataclass(frozen=True, slots=True)
class BuildStep:
    """`inputs` and `outputs` are words of the command, or files below them.

    What it says it writes must be there when it has ended; `estimated_bytes` is how much that is.
    """

    title: str
    command: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    estimated_bytes: int = 0

    def show(self, work: Path) -> str:
        """The command as a line for a shell, writing into `work`."""
        return shlex.join(self.command_in(work))

    def command_in(self, work: Path) -> tuple[str, ...]:
        """The command, writing into `work`."""
        return tuple(_replace_work(word, work) for word in self.command)

    def inputs_in(self, work: Path) -> tuple[str, ...]:
        """What the command reads when it writes into `work`."""
        return tuple(_replace_work(word, work) for word in self.inputs)

    def outputs_in(self, work: Path) -> tuple[Path, ...]:
        """What the command must leave when it writes into `work`."""
        return tuple(Path(_replace_work(word, work)) for word in self.outputs)


def _replace_work(word: str, work: Path) -> str:
    names_work = word == WORK or word.startswith(f"{WORK}/")
    return word.replace(WORK, str(work), 1) if names_work else word
