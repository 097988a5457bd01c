"""Run the steps of a `BuildPlan`."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.build_step import SCRATCH_NAME, BuildStep
from trtllm_serve_cli.build.container import prepare_container
from trtllm_serve_cli.build.engine import (
    ENGINE_FILE,
    BuildRecord,
    Engine,
    RecordedStep,
    add_build_record,
    find_engine,
    read_engine,
)
from trtllm_serve_cli.build.explain import explain_failure
from trtllm_serve_cli.build.installed import has_package
from trtllm_serve_cli.build.partial_build import (
    PartialBuild,
    drop_leftovers,
    path_of_partial_build,
    path_of_work,
    read_partial_build,
    record_step,
    resume_or_start,
)
from trtllm_serve_cli.containers.container_engine import remove_container
from trtllm_serve_cli.errors import BadInput, BuildFailed, MissingPart
from trtllm_serve_cli.paths import put_in_place
from trtllm_serve_cli.processes import last_lines, run_logged
from trtllm_serve_cli.sources.disk_space import check_space
from trtllm_serve_cli.sources.progress import show_duration

Notify = Callable[[str], None]
BUILD_LOG = "build.log"


def build_engine(
    plan: BuildPlan,
    *,
    force: bool,
    notify: Notify,
    on_line: Notify = lambda line: None,
    has_package: Callable[[str], bool] = has_package,
) -> Engine:
    """Return the engine for `plan`. Build the engine if it does not exist or `force` is set.

    `notify` receives progress messages, such as each step's title and duration. `on_line` receives
    each command and each line of its output. A failed build does not leave an incomplete engine
    behind. The next build of the same plan resumes after the finished steps unless `force` is set.
    Callers must hold the engine's lock.

    - Raise `BuildFailed` if a step fails, if the disk becomes full, or if the engine cannot be
      read.
    - Raise `MissingPart` if a program, a package or the container is not available.
    - Raise `BadInput` if the engine folder is a file, or contains files but no engine.
    - Raise `SourceError` if the disk does not have enough free space to start the build.
    """
    if not force and (engine := find_engine(plan.engine_dir, plan.fingerprint)):
        notify(f"Using the existing engine: {plan.engine_dir}")
        # A build that is killed after moving its engine into place leaves this folder behind.
        shutil.rmtree(path_of_partial_build(plan.engine_dir), ignore_errors=True)
        return dataclasses.replace(engine, model_name=plan.model_name)
    if missing := find_missing_module(plan, has_package):
        raise missing
    for step in plan.steps:
        if plan.container is None or step.is_local:
            _check_program(step)
    check_engine_dir(plan.engine_dir, plan.model_name)
    if plan.container is not None:
        prepare_container(plan.container, notify, on_line)
        # If an earlier build was killed, its container may still be running.
        remove_container(plan.container.named_for(path_of_work(plan.engine_dir)))
    started_at = int(time.time())
    build = resume_or_start(plan, rebuild=force)
    try:
        check_space(plan.engine_dir.parent, plan.estimated_bytes - build.num_bytes)
        build = _run_steps(plan, build, notify, on_line)
        add_build_record(build.work, _record_of(plan, build, started_at))
        shutil.copyfile(build.log, build.work / BUILD_LOG)
        _move_scratch_out(build)
        put_in_place(build.work, plan.engine_dir)
    except BaseException as error:
        _clean_up_after_failure(
            read_partial_build(build.path) or build, notify, isinstance(error, BuildFailed)
        )
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise _disk_full() from error
        raise
    shutil.rmtree(build.path, ignore_errors=True)
    return read_engine(plan.engine_dir)


def _run_steps(
    plan: BuildPlan, build: PartialBuild, notify: Notify, on_line: Notify
) -> PartialBuild:
    for done in build.finished:
        notify(f"{done.title}: finished in a previous run.")
    for step in plan.steps[len(build.finished) :]:
        notify(f"{step.title} …")
        started = time.monotonic()
        _run(plan, step, build, on_line)
        took_s = time.monotonic() - started
        build = record_step(build, step, took_s)
        notify(f"  took {show_duration(took_s)}")
    if not (build.work / ENGINE_FILE).exists():
        raise _failure(plan.steps[-1], f"the step did not write {ENGINE_FILE}", build.log)
    return build


def _record_of(plan: BuildPlan, build: PartialBuild, started_at: int) -> BuildRecord:
    return BuildRecord(
        model_name=plan.model_name,
        started_at=started_at,
        checkpoint=str(plan.checkpoint.path),
        revision=plan.checkpoint.revision,
        facts=plan.facts,
        steps=tuple(
            RecordedStep(done.title, step.command_in(plan.engine_dir), round(done.took_s, 3))
            for step, done in zip(plan.steps, build.finished, strict=True)
        ),
    )


def _move_scratch_out(build: PartialBuild) -> None:
    """Move the scratch folder from the future engine folder to the partial build's folder.

    `build_engine` deletes the partial build's folder after the engine is in place.
    """
    with contextlib.suppress(FileNotFoundError):
        (build.work / SCRATCH_NAME).rename(build.path / SCRATCH_NAME)


def _clean_up_after_failure(build: PartialBuild, notify: Notify, is_explained: bool) -> None:
    """Keep the finished steps after a failure and remove the interrupted step's files.

    If no step has finished, delete the work folder and, unless `is_explained` is set, the log. Only
    explained errors refer to the log.
    """
    if build.finished:
        drop_leftovers(build)
        notify(f"The finished steps are in {build.path}. Run the same command to resume the build.")
    elif is_explained:
        shutil.rmtree(build.work, ignore_errors=True)
    else:
        shutil.rmtree(build.path, ignore_errors=True)


def find_missing_module(
    plan: BuildPlan, has_package: Callable[[str], bool] = has_package
) -> MissingPart | None:
    """Return the error for the first missing module that the steps require, or None."""
    for module in plan.requires:
        if not has_package(module.name):
            why = "the package is not installed"
            return MissingPart(module.what, why=why, next_step=module.next_step)
    return None


def _check_program(step: BuildStep) -> None:
    """Raise `MissingPart` if the program or script that the step runs is missing."""
    program, *arguments = step.command
    missing = program if shutil.which(program) is None else None
    if missing is None and arguments and arguments[0].endswith(".py"):
        missing = None if Path(arguments[0]).exists() else arguments[0]
    if missing is not None:
        raise MissingPart(
            f"{missing} was not found.",
            why=f"the build step {step.title!r} runs this program",
            next_step="add --mode container to run TensorRT-LLM's programs in NVIDIA's image, or "
            "add --dry-run to print the plan",
        )


def check_engine_dir(engine_dir: Path, name: str) -> None:
    """Raise `BadInput` if `engine_dir` is a file, or if it contains files but no engine."""
    if not engine_dir.exists() or (engine_dir / ENGINE_FILE).exists():
        return
    if not engine_dir.is_dir():
        raise BadInput(
            f"{engine_dir} is not a folder.",
            why="an engine is a folder with several files",
            next_step=f"pass a new folder, for example --engine-dir "
            f"{shlex.quote(f'{engine_dir}-{name}')}",
        )
    if any(engine_dir.iterdir()):
        raise BadInput(
            f"{engine_dir} contains files that are not part of an engine.",
            why="the build replaces the whole folder and would delete these files",
            next_step="move the files, or pass a new folder, for example "
            f"--engine-dir {shlex.quote(str(engine_dir / name))}",
        )


def _run(plan: BuildPlan, step: BuildStep, build: PartialBuild, on_line: Notify) -> None:
    command = plan.command_of(step, build.work)
    command_line = f"$ {shlex.join(command)}"
    with build.log.open("a", encoding="utf-8") as file:
        file.write(f"{command_line}\n")
    on_line(command_line)
    log_start = build.log.stat().st_size
    # Without PYTHONUNBUFFERED, Python programs buffer their output, so `on_line` would receive it
    # late.
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        code = run_logged(
            command, build.log, environ=environ, on_line=on_line, stop=lambda: _stop(plan, build)
        )
    except FileNotFoundError as error:
        raise _failure(step, f"the program {command[0]} was not found", build.log) from error
    if code:
        lines = last_lines(build.log, 400, since=log_start)
        if explanation := explain_failure(code, lines):
            raise BuildFailed(
                f"Step failed: {step.title}.",
                why=f"{explanation.why}: {explanation.line}"
                if explanation.line
                else explanation.why,
                next_step=f"{explanation.next_step} (full log: {build.log})",
            )
        reason = (
            f"signal {-code} terminated the step"
            if code < 0
            else f"the step exited with code {code}"
        )
        raise _failure(step, reason, build.log)
    for output in step.outputs_in(build.work):
        if not output.exists():
            missing = output.relative_to(build.work)
            raise _failure(step, f"the step did not write {missing}", build.log)


def _stop(plan: BuildPlan, build: PartialBuild) -> None:
    """Kill the build's container, if the build runs in one.

    The container is not a child process of tllm, so it would otherwise continue to run.
    """
    if plan.container is not None:
        remove_container(plan.container.named_for(build.work))


def _failure(step: BuildStep, reason: str, log: Path) -> BuildFailed:
    last = "".join(f"\n    {line}" for line in last_lines(log, 6))
    return BuildFailed(
        f"Step failed: {step.title}.",
        why=f"{reason}; the last lines of the log are:{last}",
        next_step=f"read the full log in {log}",
    )


def _disk_full() -> BuildFailed:
    explanation = explain_failure(1, [os.strerror(errno.ENOSPC)])
    assert explanation is not None
    return BuildFailed("The build failed.", why=explanation.why, next_step=explanation.next_step)
