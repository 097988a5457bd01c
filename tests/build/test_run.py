"""Builds of tiny real commands: what they leave, and what they say when they fail."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.samples import ENGINE, HF, build_plan, python, write_engine_step
from tests.waiting import wait_until
from trtllm_serve_cli.build import BuildPlan, BuildStep, Engine, build_engine
from trtllm_serve_cli.errors import BadInput, BuildFailed, MissingPart, SourceError

LAST = write_engine_step(ENGINE)


def build(plan: BuildPlan, *, force: bool = False) -> tuple[Engine, list[str]]:
    said: list[str] = []
    return build_engine(plan, force=force, say=said.append), said


def log_of(plan: BuildPlan) -> Path:
    return plan.engine_dir.with_name(f".{plan.engine_dir.name}.build.log")


def fail(plan: BuildPlan) -> BuildFailed:
    with pytest.raises(BuildFailed) as raised:
        build(plan)
    assert list(plan.engine_dir.parent.iterdir()) == [log_of(plan)]
    return raised.value


def test_build_runs_the_steps_and_keeps_their_log(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", BuildStep("Make it", python("print('made')")), LAST)
    engine, said = build(plan)
    assert engine == dataclasses.replace(ENGINE, path=tmp_path / "e")
    assert said == ["Make it …", "Describe the engine …"]
    assert "\nmade\n" in (tmp_path / "e" / "build.log").read_text()
    assert not log_of(plan).exists()


def test_failed_step_shows_its_last_lines_and_its_log(tmp_path: Path) -> None:
    step = BuildStep("Make it", python("print('reading'); raise SystemExit('no such layer')"))
    plan = build_plan(tmp_path / "engines" / "e", step, LAST)
    error = fail(plan)
    assert (error.what, error.next_step) == ("Step failed: Make it.", f"read {log_of(plan)}")
    assert error.why.startswith("it ended with exit code 1; its last lines:\n")
    assert error.why.endswith("\n    reading\n    no such layer")


def test_killed_step_is_told_from_a_failed_one(tmp_path: Path) -> None:
    step = BuildStep("Make it", python("import os; os.kill(os.getpid(), 9)"))
    error = fail(build_plan(tmp_path / "engines" / "e", step))
    assert error.why.startswith(
        "it was ended by signal 9, as the kernel does when memory runs out; its last lines:"
    )


def test_missing_program(tmp_path: Path) -> None:
    error = fail(build_plan(tmp_path / "engines" / "e", BuildStep("Make it", ("/no/program",))))
    assert error.why.startswith("there is no program /no/program; its last lines:")


def test_steps_that_leave_no_engine(tmp_path: Path) -> None:
    error = fail(build_plan(tmp_path / "engines" / "e", BuildStep("Make it", python("pass"))))
    assert error.why.startswith("it left no engine.json; its last lines:")


@pytest.mark.parametrize(
    ("line", "why", "next_step"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full", "free some space"),
        ("MemoryError", "there was not enough memory", "close other programs"),
        ("ValueError: Trying to export a x model", "the exporter does not know", "see which"),
    ],
)
def test_known_failure_is_explained(tmp_path: Path, line: str, why: str, next_step: str) -> None:
    step = BuildStep("Make it", python(f"raise SystemExit({line!r})"))
    error = fail(build_plan(tmp_path / "engines" / "e", step))
    assert (error.why.startswith(why), error.why.endswith(line)) == (True, True)
    assert error.next_step.startswith(next_step)


def test_same_plan_finds_its_engine_again(tmp_path: Path) -> None:
    engine, _ = build(build_plan(tmp_path / "e"))
    again, said = build(build_plan(tmp_path / "e", BuildStep("Fail", ("/no/program",))))
    assert again == engine
    assert said == [f"The engine is there already: {tmp_path / 'e'}"]


def test_other_plan_builds_anew(tmp_path: Path) -> None:
    build(build_plan(tmp_path / "e"))
    other = dataclasses.replace(ENGINE, fingerprint="f2")
    plan = build_plan(tmp_path / "e", write_engine_step(other), fingerprint="f2")
    assert build(plan)[0].fingerprint == "f2"


def test_force_builds_anew(tmp_path: Path) -> None:
    build(build_plan(tmp_path / "e"))
    assert build(build_plan(tmp_path / "e"), force=True)[1] == ["Describe the engine …"]


def test_failed_rebuild_leaves_the_old_engine(tmp_path: Path) -> None:
    engine, _ = build(build_plan(tmp_path / "e"))
    with pytest.raises(BuildFailed):
        build(build_plan(tmp_path / "e", BuildStep("Fail", ("/no/program",))), force=True)
    assert build(build_plan(tmp_path / "e"))[0] == engine


def test_folder_that_holds_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(BadInput, match="photos holds something else"):
        build(build_plan(tmp_path / "photos"), force=True)
    assert (tmp_path / "photos" / "cat.png").exists()


def test_next_build_removes_what_a_killed_one_left(
    tmp_path: Path,
) -> None:
    """A real one: the process that builds is killed while its first step runs."""
    engines = tmp_path / "engines"
    code = (
        "from tests.build.samples import *; from trtllm_serve_cli.build import build_engine\n"
        "slow = BuildStep('Wait', python('import time; time.sleep(60)'))\n"
        f"build_engine(build_plan(Path({str(engines / 'e')!r}), slow), force=False, say=print)"
    )
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.DEVNULL) as builder:
        wait_until(lambda: list(engines.glob(".e.aside-*")))
        builder.kill()
    build(build_plan(engines / "e"))
    assert [path.name for path in engines.iterdir()] == ["e"]


def test_disk_that_is_too_full_is_seen_before_the_build(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", estimated_bytes=10**18)
    with pytest.raises(SourceError, match=r"too full for 1000000\.0 TB"):
        build(plan)


def test_disk_that_fills_up_is_explained(tmp_path: Path) -> None:
    def fill_up(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = build_plan(tmp_path / "engines" / "e", BuildStep("Make it", python("print(1)")))
    with pytest.raises(BuildFailed, match="Why: the disk is full\nNext: free some space"):
        build_engine(plan, force=False, say=lambda text: None, on_line=fill_up)
    assert list((tmp_path / "engines").iterdir()) == []


def test_exporting_without_the_exporter(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", checkpoint=HF)
    with pytest.raises(MissingPart, match="pip install 'trtllm-serve-cli\\[convert\\]'"):
        build_engine(plan, force=False, say=print, has_package=lambda name: False)
