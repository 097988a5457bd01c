"""Keep unfinished builds in a hidden folder next to the engine folder and resume them.

    .NAME.partial/steps.json   the plan's fingerprint, and the finished steps with their files
                 /work/        the future engine folder
                 /build.log    the steps' output

If a build is killed, the folder remains. The next build of the same plan removes the files of the
interrupted step and resumes with that step. Callers must hold the engine's lock.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.build_step import BuildStep

_SUFFIX = ".partial"
_STEPS_FILE = "steps.json"
_WORK = "work"
# File sizes in bytes and modification times in nanoseconds, keyed by relative path. A file is
# considered unchanged if both values are the same.
Files = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A successful step. `files` lists all files in the work folder after the step."""

    title: str
    command: tuple[str, ...]
    took_s: float
    files: Files


@dataclass(frozen=True, slots=True)
class PartialBuild:
    """A build that can be resumed after the steps in `finished`."""

    path: Path
    model_name: str
    fingerprint: str
    finished: tuple[FinishedStep, ...]

    @property
    def engine_dir(self) -> Path:
        """The folder for the finished engine."""
        return self.path.with_name(self.path.name.removeprefix(".").removesuffix(_SUFFIX))

    @property
    def work(self) -> Path:
        return self.path / _WORK

    @property
    def log(self) -> Path:
        return self.path / "build.log"

    @property
    def num_bytes(self) -> int:
        """The total size of the files in the work folder after the last finished step."""
        return sum(size for size, _ in self.finished[-1].files.values()) if self.finished else 0


def path_of_partial_build(engine_dir: Path) -> Path:
    """Return the folder for an engine's unfinished build."""
    return engine_dir.with_name(f".{engine_dir.name}{_SUFFIX}")


def path_of_work(engine_dir: Path) -> Path:
    """Return the folder that an engine's build steps write to."""
    return path_of_partial_build(engine_dir) / _WORK


def resume_or_start(plan: BuildPlan, *, rebuild: bool) -> PartialBuild:
    """Return the unfinished build of the plan, or start a new build.

    Discard the finished steps of a different plan, and steps that must be repeated (see
    `_still_valid`). If `rebuild` is set, discard all finished steps. Raise `OSError` if steps.json
    cannot be read or written.
    """
    path = path_of_partial_build(plan.engine_dir)
    build = PartialBuild(path, plan.model_name, plan.fingerprint, ())
    if not rebuild and (found := _read(path)) and found.fingerprint == plan.fingerprint:
        build = dataclasses.replace(build, finished=_still_valid(found, plan.steps))
    if not build.finished:
        shutil.rmtree(path, ignore_errors=True)
    build.work.mkdir(parents=True, exist_ok=True)
    build.log.touch()
    drop_leftovers(build)
    _write(build)
    return build


def record_step(build: PartialBuild, step: BuildStep, took_s: float) -> PartialBuild:
    """Record the finished `step` on disk and return the updated build."""
    finished_step = FinishedStep(step.title, step.command, took_s, _list_files(build.work))
    build = dataclasses.replace(build, finished=(*build.finished, finished_step))
    _write(build)
    return build


def drop_leftovers(build: PartialBuild) -> None:
    """Remove the interrupted step's files and all empty folders from the work folder."""
    kept = build.finished[-1].files if build.finished else {}
    for folder, folders, files in os.walk(build.work, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif str(path.relative_to(build.work)) not in kept:
                path.unlink()


def read_partial_build(path: Path) -> PartialBuild | None:
    """Return the unfinished build in `path`, or `None` if its record is unreadable or not valid."""
    try:
        return _read(path)
    except OSError:
        return None


def _read(path: Path) -> PartialBuild | None:
    try:
        record: dict[str, Any] = json.loads((path / _STEPS_FILE).read_text(encoding="utf-8"))
        finished = tuple(
            FinishedStep(
                step["title"],
                tuple(step["command"]),
                step["took_s"],
                {name: (size, changed) for name, (size, changed) in step["files"].items()},
            )
            for step in record["finished"]
        )
        return PartialBuild(path, record["model"], record["fingerprint"], finished)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None


def list_partial_builds(folder: Path) -> list[PartialBuild]:
    """Return the unfinished builds in `folder`, sorted by name."""
    found = [read_partial_build(path) for path in sorted(folder.glob(f".*{_SUFFIX}"))]
    return [build for build in found if build is not None]


def _still_valid(build: PartialBuild, steps: tuple[BuildStep, ...]) -> tuple[FinishedStep, ...]:
    """Return the finished steps that do not have to be repeated.

    The commands must match the first steps of the plan. The files recorded after the last returned
    step must be unchanged. The files of earlier steps may differ from their records, because later
    steps can change them.
    """
    current_files = _list_files(build.work)
    valid: tuple[FinishedStep, ...] = ()
    for count, (finished_step, step) in enumerate(
        zip(build.finished, steps, strict=False), start=1
    ):
        if finished_step.command != step.command:
            break
        if finished_step.files.items() <= current_files.items():
            valid = build.finished[:count]
    return valid


def _list_files(work: Path) -> Files:
    files = {}
    for path in work.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            stat = path.lstat()
            files[str(path.relative_to(work))] = (stat.st_size, stat.st_mtime_ns)
    return files


def _write(build: PartialBuild) -> None:
    record = {
        "model": build.model_name,
        "fingerprint": build.fingerprint,
        "finished": [dataclasses.asdict(step) for step in build.finished],
    }
    temporary = build.path / f".{_STEPS_FILE}"
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(build.path / _STEPS_FILE)
