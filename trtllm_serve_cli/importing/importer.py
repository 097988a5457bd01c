"""Fetch checkpoints, build engines and render model repositories."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.container import prepare_container
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.run import build_engine, check_engine_dir
from trtllm_serve_cli.build.store import lock_of
from trtllm_serve_cli.engine_kinds.dispatch import (
    complete_engine,
    describe_checkpoint,
)
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.import_checks import describe_path_problem
from trtllm_serve_cli.importing.import_plan import (
    ImportPlan,
    choose_engine_dir,
    describe_engine_source,
    fetch_options,
    find_build_tools,
    find_preserved_settings,
    plan_engine,
    plan_import,
    request_build,
)
from trtllm_serve_cli.importing.import_record import RECORD_FILE, ImportRecord, record_import
from trtllm_serve_cli.importing.import_repository import (
    plan_import_repository,
    preview_repository,
)
from trtllm_serve_cli.paths import Home, check_can_create, hold_lock
from trtllm_serve_cli.repository.model.model_config import RepositoryPlan
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import MANIFEST, read_manifest
from trtllm_serve_cli.repository.settings.engine_references import record_references
from trtllm_serve_cli.repository.settings.preserved_settings import PreservedSettings
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.fetch import fetch_checkpoint
from trtllm_serve_cli.sources.progress import Watch
from trtllm_serve_cli.sources.registry import parse_source
from trtllm_serve_cli.sources.source import CheckpointSource
from trtllm_serve_cli.yaml_schema import plain_changes

Notify = Callable[[str], None]


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Display:
    """Callbacks for an import's output.

    - `notify` receives messages.
    - `on_line` receives the log lines of build steps.
    - `watch` receives the download progress. If `watch` is None, `notify` receives the progress at
      most every 30 s.
    - `on_stage` receives the name and the duration, in seconds, of each completed stage.
    """

    notify: Notify = _ignore
    on_line: Notify = _ignore
    watch: Watch | None = None
    on_stage: Callable[[str, float], None] = _ignore

    def collect_stages(self, stages_s: dict[str, float]) -> Display:
        """Return a display that also adds the duration of each completed stage to `stages_s`."""

        def on_stage(name: str, duration_s: float) -> None:
            stages_s[name] = duration_s
            self.on_stage(name, duration_s)

        return dataclasses.replace(self, on_stage=on_stage)

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        """Time the `with` block. If the block succeeds, report its duration to `on_stage`."""
        started_s = time.monotonic()
        yield
        self.on_stage(name, time.monotonic() - started_s)


class Build(Protocol):
    """A function that builds an engine, such as `build_engine`."""

    def __call__(
        self, plan: BuildPlan, *, force: bool, notify: Notify, on_line: Notify
    ) -> Engine: ...


def build_model(
    declaration: Declaration,
    home: Home,
    *,
    force: bool = False,
    display: Display = Display(),
    build: Build = build_engine,
) -> Engine:
    """Fetch the checkpoint, and build the engine if it does not exist or `force` is set.

    Return the engine. Raise `TllmError` if the import cannot be planned or a stage fails.
    """
    plan = plan_import(declaration, home)
    with (
        hold_import_lock(home, declaration.model.name, display.notify),
        _obtain_engine(plan, home, force=force, display=display, build=build) as engine,
    ):
        return engine


def import_model(
    declaration: Declaration,
    home: Home,
    *,
    force: bool = False,
    display: Display = Display(),
    build: Build = build_engine,
) -> tuple[RepositoryPlan, Path]:
    """Fetch the checkpoint, build the engine and render the repository.

    Return the plan of the rendered repository, and its folder. Reuse an existing checkpoint. Reuse
    an existing engine unless `force` is set. Keep the `tllm set` settings that are valid for the
    new import.

    Raise `RepositoryError` if the name is used for another source and `force` is not set. Raise
    `BadInput` if the repository folder contains files but no model repository, or if it contains
    files that tllm did not create and `force` is not set. Raise `OSError` if the folder cannot be
    created. Raise another `TllmError` if the import cannot be planned or a stage fails.
    """
    stages_s: dict[str, float] = {}
    display = display.collect_stages(stages_s)
    plan = plan_import(declaration, home)
    # Before the build, reject options that the engine does not support.
    preview_repository(plan)
    if plan.path_problem:
        display.notify(describe_path_problem(plan.path_problem))
    with hold_import_lock(home, declaration.model.name, display.notify):
        _check_replaceable(plan.repository)
        check_can_create(plan.repository)
        if not force:
            _check_name_is_free(declaration.model.name, plan)
            _check_deletes_no_files(plan.repository)
        with _obtain_engine(plan, home, force=force, display=display, build=build) as engine:
            # Read the settings again, because `tllm set` may have run during the build.
            preserved = find_preserved_settings(
                declaration, plan.source, plan.choice.kind, plan.repository
            )
            _check_still_valid(plan, preserved)
            for line in preserved.describe():
                display.notify(line)
            with display.time_stage("model repository"):
                rendered = plan_import_repository(plan, engine, preserved.kept)
                rendered = dataclasses.replace(rendered, declaration=plain_changes(declaration))
                write_repository(rendered, plan.repository)
                record_references(home, plan.repository)
            record_import(plan.repository, ImportRecord(time.time(), stages_s))
    return rendered, plan.repository


@contextmanager
def _obtain_engine(
    plan: ImportPlan, home: Home, *, force: bool, display: Display, build: Build
) -> Iterator[Engine]:
    """Yield the engine while holding a lock, so that no other process rebuilds or removes it.

    Do not hold a lock if the source is an engine, or if the engine kind serves checkpoints without
    a build.
    """
    declaration, source = plan.declaration, plan.source
    display.notify(plan.choice.reason)
    if isinstance(source, EngineSource):
        yield describe_engine_source(declaration, source)
        return
    assert isinstance(source, CheckpointSource)
    _check_can_store_engine(plan, home)
    if plan.build and plan.build.container and (force or not plan.is_built):
        # Pull the image before downloading the weights, so that no download time is wasted if the
        # pull fails.
        with display.time_stage("container image"):
            prepare_container(plan.build.container, display.notify, display.on_line)
    options = fetch_options(declaration, plan.choice)
    with display.time_stage("checkpoint"):
        checkpoint = fetch_checkpoint(
            source, home=home, options=options, notify=display.notify, watch=display.watch
        )
    request = request_build(declaration, plan.choice, checkpoint, home, plan.preserved.kept)
    if find_kind(request.kind).serves_checkpoints:
        yield describe_checkpoint(request, find_build_tools(declaration))
        return
    planned = plan_engine(request, declaration, home)
    with hold_lock(
        lock_of(home, planned.engine_dir, planned.fingerprint),
        lambda: display.notify("Waiting for another tllm process that is building this engine …"),
    ):
        # Choose the folder again, because another process may have built the same engine under
        # another model name.
        planned = choose_engine_dir(planned, declaration, home)
        with display.time_stage("engine"):
            built = build(planned, force=force, notify=display.notify, on_line=display.on_line)
        yield complete_engine(built)


def _check_replaceable(repository: Path) -> None:
    """Raise `BadInput` if the folder contains files but is not a model repository of tllm."""
    if not repository.exists() or (repository / MANIFEST).exists():
        return
    if not repository.is_dir() or any(repository.iterdir()):
        raise BadInput(
            f"{repository} is neither an empty folder nor a model repository created by tllm.",
            why="the import would delete everything at this path",
            next_step="move the existing files elsewhere, or choose another folder with --repo DIR",
        )


def _check_deletes_no_files(repository: Path) -> None:
    """Raise `BadInput` if the repository contains files or folders that tllm did not create.

    Raise `RepositoryError` if the manifest is not valid.
    """
    if not (repository / MANIFEST).exists():
        return
    own = {MANIFEST, RECORD_FILE, *read_manifest(repository).models}
    # A killed process may leave the temporary file of a write.
    others = sorted(
        path.name
        for path in repository.iterdir()
        if path.name not in own and not fnmatch(path.name, ".*.aside")
    )
    if others:
        raise BadInput(
            f"{repository} contains files that tllm did not create: {', '.join(others)}.",
            why="the import replaces the whole folder and would delete these files",
            next_step="move the files elsewhere, or delete them with --force",
        )


def _check_still_valid(plan: ImportPlan, preserved: PreservedSettings) -> None:
    """Raise `RepositoryError` if the manifest was valid at the start of the import, but is not now.

    The import's plan keeps the manifest's settings, and the import would drop them.
    """
    if preserved.problem and not plan.preserved.problem:
        raise RepositoryError(
            f"The manifest of {plan.declaration.model.name!r} was damaged during the import.",
            why=f"{preserved.problem}, so the settings of `tllm set` cannot be kept",
            next_step="repeat the import; if the manifest is still damaged, the import drops these "
            "settings",
        )


def _check_can_store_engine(plan: ImportPlan, home: Home) -> None:
    """Raise `BadInput` or `OSError` if the engine folder cannot store a new engine."""
    name = plan.declaration.model.name
    if plan.is_built or find_kind(plan.choice.kind).serves_checkpoints:
        return
    engine_dir = plan.declaration.engine.dir or home.engines / name
    check_engine_dir(engine_dir, name)
    if not engine_dir.exists():
        check_can_create(engine_dir)


def _check_name_is_free(name: str, plan: ImportPlan) -> None:
    if not (plan.repository / MANIFEST).exists():
        return
    taken_by = parse_source(read_manifest(plan.repository).source)
    if taken_by.unpinned() != plan.source.unpinned():
        raise RepositoryError(
            f"The name {name} is already in use.",
            why=f"{name} was imported from {taken_by}, not from {plan.source}",
            next_step="choose another name with -m NAME, or replace the model with --force",
        )


def hold_import_lock(home: Home, name: str, notify: Notify) -> AbstractContextManager[None]:
    """Hold the model's lock, so that imports and builds of the same model do not overlap.

    If another process holds the lock, pass a message to `notify` and wait for the lock.
    """
    return hold_lock(
        home.locks / f"{name}.lock",
        lambda: notify(f"Waiting for another tllm process that is importing or building {name} …"),
    )
