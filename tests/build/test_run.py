"""Builds that run small real commands: their files, messages and errors."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE, HF, build_plan, python, write_engine_step
from tests.waiting import is_gone, wait_until
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine import BuildRecord, Engine, RecordedStep, read_build_record
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.engine_kinds.openvino.build_plan import plan_build as plan_export
from trtllm_serve_cli.errors import BadInput, BuildFailed, MissingPart, SourceError

LAST = write_engine_step(ENGINE)

FAIL = BuildStep("Fail", python("raise SystemExit(1)"))


def build(plan: BuildPlan, *, force: bool = False) -> tuple[Engine, list[str]]:
    messages: list[str] = []
    return build_engine(plan, force=force, notify=messages.append), messages


def partial_of(plan: BuildPlan) -> Path:
    return plan.engine_dir.with_name(f".{plan.engine_dir.name}.partial")


def log_of(plan: BuildPlan) -> Path:
    return partial_of(plan) / "build.log"


def fail_to_build(plan: BuildPlan) -> BuildFailed:
    with pytest.raises(BuildFailed) as raised:
        build(plan)
    assert list(plan.engine_dir.parent.iterdir()) == [partial_of(plan)]
    assert {path.name for path in partial_of(plan).iterdir()} == {"build.log", "steps.json"}
    return raised.value


def titles_in(messages: list[str]) -> list[str]:
    """Return the messages without the durations."""
    return [line for line in messages if not line.startswith("  took ")]


def test_build_runs_the_steps_and_keeps_their_log(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", BuildStep("Make it", python("print('made')")), LAST)
    engine, messages = build(plan)
    assert engine == dataclasses.replace(ENGINE, path=tmp_path / "e")
    assert titles_in(messages) == ["Make it …", "Describe the engine …"]
    assert len(messages) == 4
    assert "\nmade\n" in (tmp_path / "e" / "build.log").read_text()
    assert list(tmp_path.iterdir()) == [tmp_path / "e"]


def test_engine_has_a_build_record(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", facts={"source": "hf:a/b@c", "tools": {"nncf": "2"}})
    build(plan)
    made = read_build_record(tmp_path / "e")
    assert made is not None
    (step,) = made.steps
    assert made == BuildRecord(
        model_name="mine",
        started_at=made.started_at,
        checkpoint="/models/mine.gguf",
        revision=None,
        facts={"source": "hf:a/b@c", "tools": {"nncf": "2"}},
        steps=(RecordedStep("Describe the engine", LAST.command_in(tmp_path / "e"), step.took_s),),
    )
    assert (abs(made.started_at - time.time()) < 60, 0 < step.took_s < 60) == (True, True)


def test_failed_step_shows_its_last_lines_and_its_log(tmp_path: Path) -> None:
    step = BuildStep("Make it", python("print('reading'); raise SystemExit('no such layer')"))
    plan = build_plan(tmp_path / "engines" / "e", step, LAST)
    error = fail_to_build(plan)
    assert (error.what, error.next_step) == (
        "Step failed: Make it.",
        f"read the full log in {log_of(plan)}",
    )
    assert error.why.startswith("the step exited with code 1; the last lines of the log are:\n")
    assert error.why.endswith("\n    reading\n    no such layer")


def test_killed_step_is_explained(tmp_path: Path) -> None:
    step = BuildStep("Make it", python("import os; os.kill(os.getpid(), 9)"))
    error = fail_to_build(build_plan(tmp_path / "engines" / "e", step))
    assert error.why == "the process was killed, probably because the machine ran out of memory"


@pytest.mark.parametrize("command", [("/no/program",), (sys.executable, "/no/program.py", "x")])
def test_missing_program_is_found_before_the_first_step(tmp_path: Path, command) -> None:
    first = BuildStep("First", python("pass"))
    plan = build_plan(tmp_path / "engines" / "e", first, BuildStep("Make it", command))
    with pytest.raises(MissingPart, match=r"^/no/program(\.py)? was not found") as raised:
        build(plan)
    assert raised.value.why == "the build step 'Make it' runs this program"
    assert not plan.engine_dir.parent.exists()


def test_steps_without_an_engine_file_fail(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "engines" / "e", BuildStep("Make it", python("pass")))
    with pytest.raises(BuildFailed, match=r"the step did not write engine\.json; the last lines"):
        build(plan)
    assert not plan.engine_dir.exists()


def test_step_without_its_output_fails(tmp_path: Path) -> None:
    step = BuildStep("Make it", python("pass"), outputs=("{work}/rank0.engine",))
    error = fail_to_build(build_plan(tmp_path / "engines" / "e", step))
    assert error.why.startswith(
        "the step did not write rank0.engine; the last lines of the log are:"
    )


@pytest.mark.parametrize(
    ("line", "why", "next_step"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full", "free disk space"),
        ("MemoryError", "the machine ran out of memory", "close other programs"),
        ("ModuleNotFoundError: No module named 'x'", "a Python package is missing", "install"),
    ],
)
def test_known_failure_is_explained(tmp_path: Path, line: str, why: str, next_step: str) -> None:
    step = BuildStep("Make it", python(f"raise SystemExit({line!r})"))
    error = fail_to_build(build_plan(tmp_path / "engines" / "e", step))
    assert (error.why.startswith(why), error.why.endswith(line)) == (True, True)
    assert error.next_step.startswith(next_step)


def test_same_plan_reuses_the_engine(tmp_path: Path) -> None:
    engine, _ = build(build_plan(tmp_path / "e"))
    again, messages = build(build_plan(tmp_path / "e", FAIL))
    assert again == engine
    assert messages == [f"Using the existing engine: {tmp_path / 'e'}"]


def test_different_plan_rebuilds(tmp_path: Path) -> None:
    build(build_plan(tmp_path / "e"))
    other = dataclasses.replace(ENGINE, fingerprint="f2")
    plan = build_plan(tmp_path / "e", write_engine_step(other), fingerprint="f2")
    assert build(plan)[0].fingerprint == "f2"


def test_force_rebuilds(tmp_path: Path) -> None:
    build(build_plan(tmp_path / "e"))
    assert titles_in(build(build_plan(tmp_path / "e"), force=True)[1]) == ["Describe the engine …"]


def test_failed_rebuild_keeps_the_old_engine(tmp_path: Path) -> None:
    engine, _ = build(build_plan(tmp_path / "e"))
    with pytest.raises(BuildFailed):
        build(build_plan(tmp_path / "e", FAIL), force=True)
    assert build(build_plan(tmp_path / "e"))[0] == engine


def test_folder_that_holds_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(BadInput, match="photos contains files that are not part of an engine"):
        build(build_plan(tmp_path / "photos"), force=True)
    assert (tmp_path / "photos" / "cat.png").exists()


def test_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    with pytest.raises(BadInput, match="e is not a folder") as raised:
        build(build_plan(tmp_path / "e"), force=True)
    assert f"for example --engine-dir {tmp_path}/e-" in raised.value.next_step


def test_reused_engine_has_the_requested_model_name(tmp_path: Path) -> None:
    build(build_plan(tmp_path / "e"))
    assert build(build_plan(tmp_path / "e", model_name="other"))[0].model_name == "other"


def counting(tmp_path: Path, title: str, code: str = "") -> BuildStep:
    """Return a step that counts its runs in a file outside the build, and writes one output."""
    return BuildStep(
        title,
        python(
            "import sys; from pathlib import Path\n"
            f"with open({str(tmp_path / title)!r}, 'a') as runs: runs.write('x')\n"
            f"Path(sys.argv[1], {title!r}).write_text('done')\n{code}"
        ),
    )


def runs(tmp_path: Path, title: str) -> int:
    return len((tmp_path / title).read_text())


def breaks_once(tmp_path: Path) -> str:
    flag = tmp_path / "broke"
    return f"flag = Path({str(flag)!r})\nif not flag.exists(): flag.touch(); sys.exit('broken')"


def test_finished_steps_are_not_repeated(tmp_path: Path) -> None:
    steps = (counting(tmp_path, "a"), counting(tmp_path, "b", breaks_once(tmp_path)), LAST)
    plan = build_plan(tmp_path / "engines" / "e", *steps)
    with pytest.raises(BuildFailed, match="broken"):
        build(plan)
    assert [path.name for path in (partial_of(plan) / "work").iterdir()] == ["a"]
    _, messages = build(plan)
    assert titles_in(messages) == ["a: finished in a previous run.", "b …", "Describe the engine …"]
    assert (runs(tmp_path, "a"), runs(tmp_path, "b")) == (1, 2)
    assert {path.name for path in plan.engine_dir.iterdir()} == {
        "a", "b", "build.log", "engine.json",
    }  # fmt: skip
    assert "broken" in (plan.engine_dir / "build.log").read_text()
    assert list(plan.engine_dir.parent.iterdir()) == [plan.engine_dir]


@pytest.mark.parametrize("change", ["lost", "changed", "other plan", "other command", "forced"])
def test_step_is_repeated_if_its_files_or_command_changed(tmp_path: Path, change: str) -> None:
    steps = (counting(tmp_path, "a"), counting(tmp_path, "b", breaks_once(tmp_path)), LAST)
    plan = build_plan(tmp_path / "engines" / "e", *steps)
    with pytest.raises(BuildFailed):
        build(plan)
    left = partial_of(plan) / "work" / "a"
    match change:
        case "lost":
            left.unlink()
        case "changed":
            left.write_text("else")
        case "other plan":
            plan = dataclasses.replace(plan, fingerprint="f2")
        case "other command":
            first = counting(tmp_path, "a", "pass")
            plan = dataclasses.replace(plan, steps=(first, *plan.steps[1:]))
    build(plan, force=change == "forced")
    assert runs(tmp_path, "a") == 2


def killed_build(tmp_path: Path, number: signal.Signals) -> tuple[BuildPlan, int]:
    """Kill a build in its second step; return its plan and the pid of that step's child."""
    child = (
        "import subprocess, time; sleep = 'import time; time.sleep(600)'\n"
        "child = subprocess.Popen((sys.executable, '-c', sleep))\n"
        f"print(child.pid, file=open({str(tmp_path / 'child')!r}, 'w'), flush=True)\n"
        "time.sleep(600)"
    )
    flag = tmp_path / "broke"
    slow = f"flag = Path({str(flag)!r})\nif not flag.exists():\n  flag.touch()\n" + "".join(
        f"  {line}\n" for line in child.splitlines()
    )
    steps = (counting(tmp_path, "a"), counting(tmp_path, "b", slow), LAST)
    plan = build_plan(tmp_path / "engines" / "e", *steps)
    code = (
        "import sys; from pathlib import Path; from tests.samples.builds import *\n"
        "from trtllm_serve_cli.build.run import build_engine\n"
        "from trtllm_serve_cli.processes import exit_on_signals\n"
        f"steps = [BuildStep(*each) for each in {[(s.title, s.command) for s in steps]!r}]\n"
        f"plan = build_plan(Path({str(plan.engine_dir)!r}), *steps)\n"
        "with exit_on_signals(): build_engine(plan, force=False, notify=print)"
    )
    command = (sys.executable, "-c", code)
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as builder:
        wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
        builder.send_signal(number)
        builder.communicate(timeout=60)
    return plan, int((tmp_path / "child").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_build_resumes(tmp_path: Path, number: signal.Signals) -> None:
    plan, child = killed_build(tmp_path, number)
    wait_until(lambda: is_gone(child))
    assert not plan.engine_dir.exists()
    assert [path.name for path in (partial_of(plan) / "work").iterdir()] == ["a"]
    build(plan)
    assert (runs(tmp_path, "a"), runs(tmp_path, "b")) == (1, 2)


def test_killed_build_resumes(tmp_path: Path) -> None:
    """The build could not remove the files of its second step."""
    plan, child = killed_build(tmp_path, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    assert {path.name for path in (partial_of(plan) / "work").iterdir()} == {"a", "b"}
    build(plan)
    assert (runs(tmp_path, "a"), runs(tmp_path, "b")) == (1, 2)
    assert list(plan.engine_dir.parent.iterdir()) == [plan.engine_dir]


def test_interrupt_in_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    plan = build_plan(tmp_path / "engines" / "e", BuildStep("Make it", python("print(1)")))
    with pytest.raises(KeyboardInterrupt):
        build_engine(plan, force=False, notify=print, on_line=interrupt)
    assert list((tmp_path / "engines").iterdir()) == []


def test_too_little_disk_space_fails_before_the_build(tmp_path: Path) -> None:
    plan = build_plan(tmp_path / "e", estimated_bytes=10**18)
    with pytest.raises(SourceError, match=r"does not have enough space for 1000000\.0 TB"):
        build(plan)


def test_disk_full_during_the_build_is_explained(tmp_path: Path) -> None:
    def fill_up(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = build_plan(tmp_path / "engines" / "e", BuildStep("Make it", python("print(1)")))
    with pytest.raises(BuildFailed, match="Why: the disk is full\nNext: free disk space"):
        build_engine(plan, force=False, notify=lambda text: None, on_line=fill_up)
    assert list((tmp_path / "engines").iterdir()) == []


def test_missing_exporter_names_the_extra(tmp_path: Path) -> None:
    plan = plan_export(BuildRequest("mine", HF, tmp_path / "e", "openvino"), Toolchain("python3"))
    with pytest.raises(MissingPart, match="pip install 'trtllm-serve-cli\\[convert\\]'"):
        build_engine(plan, force=False, notify=print, has_package=lambda name: False)
