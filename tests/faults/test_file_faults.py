"""Make each file operation of a command fail, and check the files that the command leaves.

A rehearsal runs the command without a fault, and records its file operations under TLLM_HOME:
creating, opening for writing, writing, renaming, linking, changing permissions and removing. The
command is then repeated with a fault in one operation: a full disk (ENOSPC), a broken disk (EIO),
missing permissions (EACCES), or the death of the process (SIGKILL). A write fails after its first
half. After each fault:

- the exit code is 3 with what happened, why and what to do next, or 0 if all work was done
- each engine, model repository, server and key file is as before or as after the command
- no temporary file is left, except by a killed process or by a removal that failed
- the next command succeeds, and leaves the same files as without the fault

By default, each line of the package that changes files fails with one of the errors and is killed.
With TLLM_TEST_FAULTS=all, every operation fails with all four faults.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.command_runs import Machine
from tests.faults.rehearsal import Rehearsal, Scenario
from tests.samples.builds import SIM
from trtllm_serve_cli.build.engine import write_engine

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

INTERPRETER = Path(__file__).with_name("fake_interpreter.py")
IMPORT = ("import", "--engine", "sim", "--timing", "timing.json", "-s", "gguf:mine.gguf", "-m")
SET = ("set", "m", "max_queue_size=5", "max_num_seqs=3")
START = ("start", "m", "n", "--no-openai")
SCENARIOS = {
    "import": Scenario((*IMPORT, "m")),
    "import again": Scenario((*IMPORT, "m", "--force"), ((*IMPORT, "m"), SET)),
    "set": Scenario(SET, ((*IMPORT, "m"),), reader=("show", "m")),
    "start": Scenario(START, ((*IMPORT, "m"), (*IMPORT, "n"))),
    "start again": Scenario(START, ((*IMPORT, "m"), (*IMPORT, "n"), START)),
    "keys add": Scenario(("keys", "add", "alice"), following=("keys", "add", "bob")),
    "keys add another": Scenario(
        ("keys", "add", "alice"), (("keys", "add", "carol"),), ("keys", "add", "bob")
    ),
    "keys revoke": Scenario(
        ("keys", "revoke", "alice"), (("keys", "add", "alice"),), ("keys", "add", "bob")
    ),
}


@pytest.fixture
def machine(
    tmp_path: Path, home_folder: Path, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    """Return a machine with a model, a fake Triton, and fake build steps and supervisors."""
    write_engine(SIM, tmp_path)
    (tmp_path / "timing.json").write_text('{"timing": {"step_s": 0.002}}')
    command = shlex.join((sys.executable, "-SE", str(INTERPRETER), str(tmp_path / "engine.json")))
    _write_script(tmp_path / "bin" / "python", f'exec {command} "$@"')
    _write_script(tmp_path / "bin" / "tritonserver", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    runtime = tmp_path / "machine" / "runtime"
    runtime.mkdir(parents=True)
    for name in ("__init__.py", "engine.py"):
        (runtime / name).touch()
    return Machine(home_folder, runtime.parent, tmp_path / "bin" / "python")


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_command_survives_each_fault(
    name: str, machine: Machine, note_faults: Callable[[str, int], None]
) -> None:
    rehearsal = Rehearsal(machine, SCENARIOS[name])
    is_full = os.environ.get("TLLM_TEST_FAULTS") == "all"
    faults = rehearsal.all_faults() if is_full else rehearsal.chosen_faults()
    problems = []
    for fault, at in faults:
        problems += rehearsal.inject(fault, at)
    note_faults(f"tllm {name}", len(faults))
    assert not problems, "\n".join(problems)
    num_lines = len({(each.kind, each.caller) for each in rehearsal.operations})
    assert len(faults) >= 2 * num_lines
