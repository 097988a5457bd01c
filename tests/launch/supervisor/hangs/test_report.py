"""The report about a process that hangs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.hangs import report
from trtllm_serve_cli.launch.supervisor.hangs.report import REPORT_FILE, report_hang
from trtllm_serve_cli.runtime.watch.liveness import Owner, Sign, Silence


def report_of(plan: LaunchPlan, owner: Owner, pid: int) -> str:
    plan.directory.mkdir(parents=True, exist_ok=True)
    plan.log.write_text("first\nlast\n")
    sign = Sign("part", 0, f"process {pid} hangs", 1.0, 2.0, owner, pid)
    report_hang(plan, [Silence(sign, 3.0)], [psutil.Process()])
    return (plan.directory / REPORT_FILE).read_text()


def write_program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin"


def test_report_has_the_gpus_the_stacks_and_the_log(tmp_path: Path, programs: Path) -> None:
    write_program(programs, "nvidia-smi", "echo 'H200 100 %'")
    write_program(programs, "py-spy", 'echo "stack of $*"')
    ended = 2**22 + 1  # above the kernel's limit, so no process has this id
    written = report_of(fake_plan(tmp_path), "worker", ended)
    sections = dict(each.split("\n", 1) for each in written.split("== ") if "\n" in each)
    assert sections["nvidia-smi"].strip() == "H200 100 %"
    assert sections[f"py-spy dump --pid {ended}"].strip() == f"stack of dump --pid {ended}"
    assert sections["Server log before the stacks"].strip() == "first\nlast"
    assert f"{os.getpid()} running" in sections["Processes"]


def test_report_has_the_last_2000_lines_of_stacks(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fake_plan(tmp_path)
    lines = [f"{number}:{'x' * 200}" for number in range(2500)]

    def write_stacks(hanging: Sequence[Silence]) -> None:
        with plan.log.open("a") as log:
            log.write("\n".join(lines))

    monkeypatch.setattr(report, "write_stacks", write_stacks)
    section = report_of(plan, "worker", os.getpid()).partition("== Stacks")[2]
    assert section.splitlines()[1:2001] == lines[500:]


def test_triton_gets_no_python_stacks(tmp_path: Path, programs: Path) -> None:
    write_program(programs, "py-spy", "echo stack")
    assert "py-spy" not in report_of(fake_plan(tmp_path), "triton", os.getpid())


def test_programs_that_fail_or_are_missing_do_not_prevent_the_report(
    tmp_path: Path, programs: Path
) -> None:
    write_program(programs, "nvidia-smi", "echo 'no devices were found' >&2; exit 6")
    plan = fake_plan(tmp_path)
    written = report_of(plan, "triton", os.getpid())
    assert "== nvidia-smi\nno devices were found" in written
    assert f"E supervisor] process {os.getpid()} hangs; restarting it" in plan.log.read_text()
