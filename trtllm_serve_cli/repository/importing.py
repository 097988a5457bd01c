"""The whole way from a model's name to its model repository, one step after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trtllm_serve_cli.build import (
    BuildOptions,
    BuildPlan,
    Engine,
    build_engine,
    choose_engine_kind,
    plan_build,
)
from trtllm_serve_cli.build.plan import Quantization
from trtllm_serve_cli.catalog import find_alias, resolve_alias
from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.paths import Home, check_model_name
from trtllm_serve_cli.repository.plan import (
    RepositoryPlan,
    ServingOptions,
    check_name_is_free_in_layout,
    check_parameters,
    plan_repository,
)
from trtllm_serve_cli.repository.render import MANIFEST, write_repository
from trtllm_serve_cli.repository.store import find_model, read_manifest
from trtllm_serve_cli.sources import (
    FetchOptions,
    FetchPlan,
    Source,
    fetch_checkpoint,
    parse_source,
    plan_fetch,
)
from trtllm_serve_cli.sources.fetch import apply_revision

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What a user asked `tllm import` or `tllm build` for; None means the default."""

    name: str
    source: str | None = None
    engine: str = "auto"
    quantization: str | None = None
    engine_dir: Path | None = None
    repository: Path | None = None
    fetch: FetchOptions = field(default_factory=FetchOptions)
    serving: ServingOptions = field(default_factory=ServingOptions)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import would do; `build` is None while there is no checkpoint here to plan on."""

    request: ImportRequest
    source: Source
    fetch: FetchPlan
    reason: str
    build: BuildPlan | None
    repository: Path

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`."""
        return {
            "model": self.request.name,
            "source": str(self.source),
            "engine_reason": self.reason,
            "fetch": {
                "description": self.fetch.description,
                "destination": str(self.fetch.destination),
                "is_cached": self.fetch.is_cached,
            },
            "build": self.build.as_dict() if self.build else None,
            "repository": str(self.repository),
        }

    def describe(self) -> str:
        """The plan in a few lines."""
        lines = [self.fetch.description, self.reason]
        if self.build is None:
            lines.append("Then plan the build, which takes the checkpoint's own config to do.")
        else:
            lines.append(self.build.describe())
        return "\n".join(lines)


def plan_import(request: ImportRequest, home: Home) -> ImportPlan:
    """What importing would do, found out without a network and without writing anything.

    Raises `BadInput` for a name, source or option that cannot be used.
    """
    check_model_name(request.name)
    check_name_is_free_in_layout(request.name)
    check_parameters(request.serving.parameters)
    source = apply_revision(_find_source(request, home), request.fetch.revision)
    fetch = plan_fetch(source, home=home)
    choice = choose_engine_kind(request.engine)
    build = None
    if fetch.is_cached:
        build = _plan_build(request, source, home, lambda text: None)
    repository = request.repository or home.models / request.name
    return ImportPlan(request, source, fetch, choice.reason, build, repository)


def build_model(
    request: ImportRequest, home: Home, *, force: bool, say: Say, on_line: Say
) -> Engine:
    """Fetch the checkpoint and build its engine, unless it is there. Raises `TllmError`s."""
    plan = plan_import(request, home)
    say(plan.reason)
    with _locked(home, request.name, say):
        return _fetch_and_build(request, plan.source, home, force, say, on_line)


def import_model(
    request: ImportRequest, home: Home, *, force: bool, say: Say, on_line: Say
) -> tuple[RepositoryPlan, Path]:
    """Fetch, build and render; returns what was rendered and where.

    What is there already is used again. Raises `RepositoryError` when the name belongs to another
    source and `force` is not given, and whatever the stages raise.
    """
    plan = plan_import(request, home)
    with _locked(home, request.name, say):
        if not force:
            _check_not_taken(request.name, plan)
        say(plan.reason)
        engine = _fetch_and_build(request, plan.source, home, force, say, on_line)
        rendered = plan_repository(request.name, engine, request.serving)
        write_repository(rendered, plan.repository)
    return rendered, plan.repository


def _find_source(request: ImportRequest, home: Home) -> Source:
    if request.source is not None:
        return parse_source(request.source)
    alias = find_alias(request.name)
    if alias is None and (known := find_model(home, request.name)):
        return parse_source(known.source)
    return parse_source((alias or resolve_alias(request.name)).source)


def _fetch_and_build(
    request: ImportRequest, source: Source, home: Home, force: bool, say: Say, on_line: Say
) -> Engine:
    plan = _plan_build(request, source, home, say)
    return build_engine(plan, force=force, say=say, on_line=on_line)


def _plan_build(request: ImportRequest, source: Source, home: Home, say: Say) -> BuildPlan:
    checkpoint = fetch_checkpoint(source, home=home, options=request.fetch, say=say)
    return plan_build(
        request.name,
        checkpoint,
        request.engine_dir or home.engines / request.name,
        BuildOptions(
            python=sys.executable,
            kind=choose_engine_kind(request.engine).kind,
            quantization=cast("Quantization | None", request.quantization),
            trust_remote_code=request.fetch.trust_remote_code,
        ),
    )


def _check_not_taken(name: str, plan: ImportPlan) -> None:
    if (plan.repository / MANIFEST).exists():
        taken_by = read_manifest(plan.repository).source
        # A pinned hub source says more than what was asked for: the same up to its commit.
        if taken_by.partition("@")[0] == str(plan.source).partition("@")[0]:
            return
        why = f"it was imported from {taken_by}, not from {plan.source}"
    elif plan.repository.exists() and any(plan.repository.iterdir()):
        why = f"{plan.repository} holds something else"
    else:
        return
    raise RepositoryError(
        f"The name {name} is taken.",
        why=why,
        next_step="choose another name with -m NAME, or replace it with --force",
    )


@contextmanager
def _locked(home: Home, name: str, say: Say) -> Iterator[None]:
    """One import of a model at a time; a second one waits and then finds it done."""
    import filelock

    home.locks.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home.locks / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say(f"Another tllm is importing {name}; waiting for it to end …")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
