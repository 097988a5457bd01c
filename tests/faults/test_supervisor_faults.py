"""Make each file operation of a supervisor fail while it starts, watches and stops a server.

A rehearsal records the operations in the server's folder. The supervisor then runs again with a
fault in one of them. After each fault:

- the server becomes ready and stops as without the fault, unless the supervisor was killed, or
  could not write the first state or prepare the start
- a server whose start could not be prepared has the state `failed`, with the file that caused it
- no process of the server is left
- the state is complete, and no temporary file is left, except by a killed supervisor
- the next start in the same folder succeeds, and leaves the same files

By default, a sixth of the operations fail, with faults that take turns, and only killed supervisors
start again. With --full, each operation fails with all faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.faults.file_operations import (
    CLEANUPS,
    KILL,
    Operation,
    PlaceFinder,
    find_faults,
)
from tests.faults.supervised_run import SupervisedRun
from tests.waiting import wait_until

# Number of supervisors that run at the same time. They wait most of the time.
NUM_PARALLEL = 4


def finish(runs: Iterable[SupervisedRun]) -> None:
    """Wait until the supervisors have ended, and kill those that do not end in time."""
    waiting = list(runs)
    try:
        wait_until(lambda: sum(not each.has_ended() for each in waiting) == 0)
    finally:
        for each in waiting:
            each.kill()


def find_problems(run: SupervisedRun, fault: str, operation: Operation) -> Iterator[str]:
    """Yield what is wrong after a supervisor with a fault has ended."""
    state = run.state
    ended = (run.code, None if state is None else state.phase)
    if fault == KILL:
        if run.code != -9:
            yield f"exit code {run.code}"
    elif state is None:
        is_explained = "[Errno " in run.output.splitlines()[-1]
        if run.code != 1 or operation.caller[0] != run.operations[0].caller[0] or not is_explained:
            yield f"the supervisor ended with {run.code} and without a state: {run.output}"
    elif state.phase == "failed":
        is_explained = any(operation.path.rpartition("/")[2] in line for line in state.why)
        if run.was_ready or run.code != 1 or not is_explained:
            yield f"the supervisor ended with {run.code}: {state}"
    elif ended != (0, "stopped") or not run.was_ready:
        yield f"the supervisor ended with {ended}: {run.output}"
    if run.has_damaged_state:
        yield "the state is damaged"
    wait_until(lambda: not run.left_pids)


def find_leftovers(run: SupervisedRun, fault: str, operation: Operation, known: set[str]) -> str:
    """Return a message about unknown files, which a kill and a failed cleanup may leave."""
    left = run.files - known
    return f"{left} is left" if left and fault != KILL and operation.kind not in CLEANUPS else ""


@pytest.mark.timeout(1800)
def test_supervisor_survives_each_fault(
    tmp_path: Path,
    is_full: bool,
    note_faults: Callable[[str, Iterable[str]], None],
) -> None:
    rehearsal = SupervisedRun(tmp_path / "rehearsal")
    finish([rehearsal])
    assert rehearsal.code == 0, rehearsal.output
    known = rehearsal.files
    faults = find_faults(rehearsal.operations, is_full=is_full)
    problems: list[str] = []
    for start in range(0, len(faults), NUM_PARALLEL):
        part = faults[start : start + NUM_PARALLEL]
        runs = [
            SupervisedRun(tmp_path / f"{start + number}", fault, place)
            for number, (fault, _, place) in enumerate(part)
        ]
        finish(runs)
        for run, (fault, operation, place) in zip(runs, part, strict=True):
            assert place in map(PlaceFinder(), run.operations), f"{operation} was not reached"
            found = [*find_problems(run, fault, operation)]
            found += filter(None, [find_leftovers(run, fault, operation, known)])
            problems += [f"{fault} at {operation}: {each}" for each in found]
        again = [each for each in zip(runs, part, strict=True) if is_full or each[1][0] == KILL]
        for run, _ in again:
            run.start_again()
        finish(run for run, _ in again)
        for run, (fault, operation, _) in again:
            if (run.code, run.files - known) != (0, set()):
                problems.append(
                    f"{fault} at {operation}: the next start ended with {run.code} and left "
                    f"{run.files - known}: {run.output}"
                )
    note_faults("supervisor", (fault for fault, _, _ in faults))
    assert not problems, "\n".join(problems)
