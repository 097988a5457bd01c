"""Rehearse a command without a fault, repeat it with a fault, and check the files it leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.faults.command_runs import Machine, Run
from tests.faults.file_operations import (
    CLEANUPS,
    KILL,
    READS,
    Operation,
    PlaceFinder,
    choose_faults,
    faults_of,
)
from tests.faults.files import Files, find_leftovers, find_partial_units, restore

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """A command that is tested, the commands before it, and the command after it.

    By default, the command after it is the same command. `reader` is a command that reads the
    files, and completes a change that was interrupted. `files` are files in TLLM_HOME before the
    command. If `downloads` is set, a killed command is also repeated without the hub, so it fails
    or uses the files that were downloaded.
    """

    command: Arguments
    before: tuple[Arguments, ...] = ()
    following: Arguments = ()
    reader: Arguments = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    downloads: bool = False

    @property
    def next(self) -> Arguments:
        return self.following or self.command


class Rehearsal:
    """The files before and after a command, its operations, and the files after the next one."""

    def __init__(self, machine: Machine, scenario: Scenario) -> None:
        self._machine, self._scenario = machine, scenario
        self._copy = machine.scratch / "before"
        for command in scenario.before:
            machine.warm_up(*command)
        for name, data in scenario.files.items():
            (machine.home / name).parent.mkdir(parents=True, exist_ok=True)
            (machine.home / name).write_bytes(data)
        if machine.home.exists():
            shutil.copytree(machine.home, self._copy, symlinks=True)
        machine.warm_up(*scenario.command)
        self._restore()
        self._before = Files.read(machine.home)
        self._ends = [self._read_after(scenario.next)]
        self._restore()
        self.operations = self._succeed(scenario.command).operations
        self._places = list(map(PlaceFinder(), self.operations))
        self._after = Files.read(machine.home)
        self._ends.append(self._read_after(scenario.next))

    def all_faults(self) -> list[tuple[str, int]]:
        """Return all faults of all operations."""
        return [
            (fault, at)
            for at, operation in enumerate(self.operations)
            for fault in faults_of(operation.kind)
        ]

    def chosen_faults(self, first: int) -> list[tuple[str, int]]:
        """Return the faults that `choose_faults` chooses."""
        return choose_faults(self.operations, first)

    def inject(self, fault: str, at: int) -> list[str]:
        """Run the command with a fault in operation number `at`, and return the problems."""
        self._restore()
        operation, place = self.operations[at], self._places[at]
        run = self._machine.run(*self._scenario.command, fault=fault, at=place)
        if place not in map(PlaceFinder(), run.operations):
            # A command that waits reads a file as often as necessary.
            is_repeated = operation.kind in READS and place[2] > 0
            missed = f"{fault} at {operation}: the command did not reach the operation"
            return [] if is_repeated else [missed]
        found = [*self._check_run(run, fault), *self._check_files(run, fault, operation)]
        return [f"{fault} at {operation}: {each}" for each in found]

    def _check_run(self, run: Run, fault: str) -> Iterator[str]:
        if fault == KILL:
            if run.code != -9:
                yield f"exit code {run.code}"
        elif run.code == 3:
            if not all(each in run.output for each in ("Error: ", "Why: ", "Next: ")):
                yield f"the message is incomplete: {run.output}"
        elif run.code != 0:
            yield f"exit code {run.code}: {run.output[-2000:]}"

    def _check_files(self, run: Run, fault: str, operation: Operation) -> Iterator[str]:
        if self._scenario.reader:
            self._succeed(self._scenario.reader)
        found = Files.read(self._machine.home)
        leftovers = find_leftovers(found, self._before, self._after)
        found = found.without(leftovers)
        for name in find_partial_units(found, self._before, self._after):
            yield f"{name} is neither as before nor as after the command"
        if run.code == 0 and found.used != self._after.used:
            yield "the command reported success, but did not do its work"
        if fault != KILL and operation.kind not in CLEANUPS:
            # The next build resumes after the finished steps in a folder `.NAME.partial`.
            # A download resumes after the bytes in a file `NAME.incomplete`.
            yield from (
                f"{path} is left"
                for path in leftovers
                if ".partial" not in path and not path.endswith(".incomplete")
            )
        if self._scenario.downloads and fault == KILL:
            yield from self._check_offline()
        following = self._machine.run(*self._scenario.next)
        if following.code:
            yield f"the next command failed: {following.output}"
            return
        end = Files.read(self._machine.home)
        if all(end.used != each.used for each in self._ends):
            yield f"the next command left other files: {self._find_difference(end)}"

    def _check_offline(self) -> Iterator[str]:
        """Check that the command without the hub fails, or uses the whole checkpoint."""
        offline = self._machine.run(*self._scenario.command, environ={"HF_HUB_OFFLINE": "1"})
        if offline.code not in (0, 3):
            yield f"without the hub, the exit code is {offline.code}: {offline.output[-2000:]}"
        if offline.code == 0 and Files.read(self._machine.home).used != self._after.used:
            yield "without the hub, an incomplete checkpoint was used"

    def _find_difference(self, end: Files) -> list[str]:
        """Return the paths in which `end` differs from the closest of the expected files."""
        differences = [end.used.items() ^ each.used.items() for each in self._ends]
        return sorted({path for path, _ in min(differences, key=len)})

    def _restore(self) -> None:
        restore(self._machine.home, self._copy)

    def _read_after(self, command: Arguments) -> Files:
        self._succeed(command)
        return Files.read(self._machine.home)

    def _succeed(self, command: Arguments) -> Run:
        run = self._machine.run(*command)
        assert run.code == 0, run.output
        return run
