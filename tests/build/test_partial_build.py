"""Resuming unfinished builds."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.builds import build_plan
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.partial_build import (
    drop_leftovers,
    list_partial_builds,
    read_partial_build,
    record_step,
    resume_or_start,
)

NAMES = st.sampled_from(["a", "b", "deep/c", "deep/er/d"])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def files_in(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*") if not path.is_dir()}


@given(
    st.lists(st.sets(NAMES, min_size=1), max_size=4),
    st.sets(NAMES),
    st.sets(st.sampled_from(["left", "deep/left", "deep/er/left"])),
)
def test_build_resumes_after_the_last_step_whose_files_are_unchanged(
    written: list[set[str]], damaged: set[str], leftovers: set[str]
) -> None:
    """Steps may overwrite files of earlier steps, and files may be damaged or added later."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [BuildStep(str(number), ("x", str(number))) for number in range(len(written) + 1)]
        plan = build_plan(Path(folder, "e"), *steps)
        build = resume_or_start(plan, rebuild=False)
        states: list[dict[str, int]] = []
        for number, names in enumerate(written):
            for name in names:
                write(build.work / name, "x" * (number + 1))
            states.append({**(states[-1] if states else {}), **dict.fromkeys(names, number)})
            build = record_step(build, steps[number], 1.0)
        for name in damaged:
            write(build.work / name, "damaged, and long")
        for name in leftovers:
            write(build.work / name, "")
        now = {**(states[-1] if states else {}), **dict.fromkeys(damaged, -1)}
        count = max(
            (k + 1 for k, state in enumerate(states) if state.items() <= now.items()), default=0
        )
        again = resume_or_start(plan, rebuild=False)
        assert (len(again.finished), files_in(again.work)) == (
            count, set(states[count - 1]) if count else set(),
        )  # fmt: skip


def test_unreadable_record_does_not_discard_the_finished_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    plan = build_plan(tmp_path / "e")
    build = resume_or_start(plan, rebuild=False)
    write(build.work / "a", "x")
    record_step(build, plan.steps[0], 1.0)
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(Path, "read_text", fail)
        resume_or_start(plan, rebuild=False)
    assert len(resume_or_start(plan, rebuild=False).finished) == 1


def test_links_are_kept_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint" / "weights", "mine")
    plan = build_plan(tmp_path / "e")
    build = resume_or_start(plan, rebuild=False)
    (build.work / "folder").symlink_to(tmp_path / "checkpoint")
    build = record_step(build, plan.steps[0], 1.0)
    (build.work / "later").symlink_to(tmp_path / "checkpoint")
    drop_leftovers(build)
    assert [path.name for path in build.work.iterdir()] == ["folder"]
    assert (tmp_path / "checkpoint" / "weights").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": "m"}', '{"finished": [1]}', "null"])
def test_invalid_steps_file_starts_a_new_build(tmp_path: Path, text: str) -> None:
    plan = build_plan(tmp_path / "e")
    build = resume_or_start(plan, rebuild=False)
    write(build.work / "left", "")
    (build.path / "steps.json").write_text(text)
    assert (read_partial_build(build.path), list_partial_builds(tmp_path)) == (None, [])
    again = resume_or_start(plan, rebuild=False)
    assert (again.finished, files_in(again.work)) == ((), set())


def test_builds_are_listed_by_name(tmp_path: Path) -> None:
    builds = [resume_or_start(build_plan(tmp_path / name), rebuild=True) for name in ("b", "a")]
    assert list_partial_builds(tmp_path) == builds[::-1]
    assert [build.engine_dir for build in builds] == [tmp_path / "b", tmp_path / "a"]
    shutil.rmtree(builds[0].path)
    assert list_partial_builds(tmp_path) == builds[1:]
