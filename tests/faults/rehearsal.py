"""Rehearse a command without a fault, repeat it with a fault, and check the files it leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.command_runs import Machine, Run
from tests.faults.file_operations import CLEANUPS, FAULTS, Operation
from tests.faults.files import Files, find_leftovers, find_partial_units, restore

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """A command that is tested, the commands before it, and the command after it.

    By default, the command after it is the same command. `reader` is a command that reads the
    files, and completes a change that was interrupted.
    """

    command: Arguments
    before: tuple[Arguments, ...] = ()
    following: Arguments = ()
    reader: Arguments = ()

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
        if machine.home.exists():
            shutil.copytree(machine.home, self._copy, symlinks=True)
        machine.warm_up(*scenario.command)
        self._restore()
        self._before = Files.read(machine.home)
        self._ends = [self._read_after(scenario.next)]
        self._restore()
        self.operations = self._succeed(scenario.command).operations
        self._after = Files.read(machine.home)
        self._ends.append(self._read_after(scenario.next))

    def all_faults(self) -> list[tuple[str, int]]:
        """Return all faults of all operations."""
        return [(fault, at) for at in range(len(self.operations)) for fault in FAULTS]

    def chosen_faults(self) -> list[tuple[str, int]]:
        """Return two faults for each kind of operation from each line of the package.

        The first of these operations fails with an error, which differs from line to line. In the
        last operation, the process is killed.
        """
        errors = [fault for fault in FAULTS if fault != "SIGKILL"]
        sites: dict[tuple[str, Arguments], list[int]] = {}
        for number, operation in enumerate(self.operations):
            sites.setdefault((operation.kind, operation.caller), []).append(number)
        chosen = []
        for position, numbers in enumerate(sites.values()):
            chosen.append((errors[position % len(errors)], numbers[0]))
            chosen.append(("SIGKILL", numbers[-1]))
        return chosen

    def inject(self, fault: str, at: int) -> list[str]:
        """Run the command with a fault in operation number `at`, and return the problems."""
        self._restore()
        run = self._machine.run(*self._scenario.command, fault=fault, at=at)
        operation = self.operations[at]
        if len(run.operations) <= at or run.operations[at].caller != operation.caller:
            return [f"{fault} at {operation}: the command did not reach the operation"]
        found = [*self._check_run(run, fault), *self._check_files(run, fault, operation)]
        return [f"{fault} at {operation}: {each}" for each in found]

    def _check_run(self, run: Run, fault: str) -> Iterator[str]:
        if fault == "SIGKILL":
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
        if run.code == 0 and found != self._after:
            yield "the command reported success, but did not do its work"
        if fault != "SIGKILL" and operation.kind not in CLEANUPS:
            # The next build resumes after the finished steps in a folder `.NAME.partial`.
            yield from (f"{path} is left" for path in leftovers if ".partial" not in path)
        following = self._machine.run(*self._scenario.next)
        if following.code:
            yield f"the next command failed: {following.output}"
            return
        end = Files.read(self._machine.home)
        if end not in self._ends:
            yield f"the next command left other files: {self._find_difference(end)}"

    def _find_difference(self, end: Files) -> list[str]:
        """Return the paths in which `end` differs from the closest of the expected files."""
        differences = [end.content.items() ^ each.content.items() for each in self._ends]
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
