"""Carries a `BuildPlan` out."""

from __future__ import annotations

import errno
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from trtllm_serve_cli.build.engine import ENGINE_FILE, Engine, find_engine, read_engine
from trtllm_serve_cli.build.kinds import has_package
from trtllm_serve_cli.build.plan import BuildPlan, BuildStep
from trtllm_serve_cli.errors import BadInput, BuildFailed, MissingPart
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.processes import last_lines, run_logged
from trtllm_serve_cli.sources import check_space

# A line of a step's output that tells what went wrong -> what to do about it.
_EXPLAINED = (
    ("No space left on device", "the disk is full", "free some space, then run it again"),
    ("MemoryError", "there was not enough memory", "close other programs, or use a smaller model"),
    (
        "Trying to export a",
        "the exporter does not know this architecture",
        "see which models optimum-intel exports, or import a GGUF file of the model",
    ),
)


def build_engine(
    plan: BuildPlan,
    *,
    force: bool,
    say: Callable[[str], None],
    on_line: Callable[[str], None] = lambda line: None,
    has_package: Callable[[str], bool] = has_package,
) -> Engine:
    """The engine of `plan`, built unless it is there already or `force` asks for it anew.

    `say` gets a sentence per step, `on_line` the steps' output. Raises `BuildFailed` with the last
    lines of a step that failed, `MissingPart` when a package it needs is not installed, `BadInput`
    when the engine's folder holds something else; none leaves anything behind but the log. Callers
    hold the model's lock.
    """
    if not force and (engine := find_engine(plan.engine_dir, plan.fingerprint)):
        say(f"The engine is there already: {plan.engine_dir}")
        return engine
    if plan.checkpoint.format == "hf" and not has_package("optimum.intel"):
        raise _missing_exporter()
    _check_replaceable(plan.engine_dir, plan.model_name)
    check_space(plan.engine_dir.parent, plan.estimated_bytes)
    log = _new_log(plan)
    try:
        with write_aside(plan.engine_dir) as work:
            for step in plan.steps:
                say(f"{step.title} …")
                _run(step, work, log, on_line)
            if not (work / ENGINE_FILE).exists():
                raise _failure(plan.steps[-1], "it left no engine.json", log)
            shutil.copyfile(log, work / "build.log")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            log.unlink(missing_ok=True)
            why, next_step = _EXPLAINED[0][1:]
            raise BuildFailed("The build stopped.", why=why, next_step=next_step) from error
        raise
    log.unlink()
    return read_engine(plan.engine_dir)


def _missing_exporter() -> MissingPart:
    return MissingPart(
        "Exporting a Hugging Face checkpoint needs optimum-intel.",
        why="it is not installed here",
        next_step="pip install 'trtllm-serve-cli[convert]' && pip install --no-deps "
        "optimum-intel   (a GGUF file needs neither)",
    )


def _check_replaceable(engine_dir: Path, name: str) -> None:
    """An engine's folder is replaced whole, so it must not hold anything else."""
    if not engine_dir.exists() or (engine_dir / ENGINE_FILE).exists():
        return
    if not engine_dir.is_dir() or any(engine_dir.iterdir()):
        raise BadInput(
            f"{engine_dir} holds something else.",
            why="the engine would take the place of all that is there",
            next_step="move it away, or name a new folder: "
            f"--engine-dir {shlex.quote(str(engine_dir / name))}",
        )


def _new_log(plan: BuildPlan) -> Path:
    """A log that outlives a failed build, and whose place the next build of the engine takes."""
    plan.engine_dir.parent.mkdir(parents=True, exist_ok=True)
    log = plan.engine_dir.with_name(f".{plan.engine_dir.name}.build.log")
    log.write_bytes(b"")
    return log


def _run(step: BuildStep, work: Path, log: Path, on_line: Callable[[str], None]) -> None:
    command = step.command_in(work)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {step.show(work)}\n")
    try:
        code = run_logged(command, log, on_line=on_line)
    except FileNotFoundError as error:
        raise _failure(step, f"there is no program {command[0]}", log) from error
    if code:
        how = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        raise _failure(step, how, log)


def _failure(step: BuildStep, how: str, log: Path) -> BuildFailed:
    tail = last_lines(log, 12)
    for line in reversed(tail):
        for sign, why, next_step in _EXPLAINED:
            if sign in line:
                return BuildFailed(
                    f"Step failed: {step.title}.", why=f"{why}: {line}", next_step=next_step
                )
    if how.endswith("signal 9") and sys.platform == "linux":
        how += ", as the kernel does when memory runs out"
    last = "".join(f"\n    {line}" for line in tail[-6:])
    return BuildFailed(
        f"Step failed: {step.title}.", why=f"{how}; its last lines:{last}", next_step=f"read {log}"
    )
