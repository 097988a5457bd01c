"""Define a build step: one command with its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Placeholder for the build's work folder, which all steps share.
WORK = "{work}"
# Subfolder of the work folder for files that are deleted after the build.
SCRATCH_NAME = ".scratch"
SCRATCH = f"{WORK}/{SCRATCH_NAME}"


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One command of a build.

    `inputs` and `outputs` are the files and folders that the command reads and writes. The outputs
    must exist after the command exits. `estimated_bytes` is the expected size of the outputs. If
    `is_local` is set, the command runs on this machine even if the build runs in a container.
    """

    title: str
    command: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    estimated_bytes: int = 0
    is_local: bool = False

    def command_in(self, work: Path) -> tuple[str, ...]:
        """Return the command with the `WORK` placeholder replaced by `work`."""
        return tuple(_replace_work(word, work) for word in self.command)

    def inputs_in(self, work: Path) -> tuple[str, ...]:
        """Return `inputs` with the `WORK` placeholder replaced by `work`."""
        return tuple(_replace_work(word, work) for word in self.inputs)

    def outputs_in(self, work: Path) -> tuple[Path, ...]:
        """Return `outputs` with the `WORK` placeholder replaced by `work`."""
        return tuple(Path(_replace_work(word, work)) for word in self.outputs)


def _replace_work(word: str, work: Path) -> str:
    names_work = word == WORK or word.startswith(f"{WORK}/")
    return word.replace(WORK, str(work), 1) if names_work else word
