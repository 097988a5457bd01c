"""The whole way from a model's name to its model repository, one step after the other."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from trtllm_serve_cli.build import (
    BuildOptions,
    BuildPlan,
    Engine,
    EngineChoice,
    build_engine,
    choose_engine_kind,
    describe_tensorrt,
    describe_vllm,
    plan_build,
)
from trtllm_serve_cli.build.plan import Quantization
from trtllm_serve_cli.catalog import find_alias, resolve_alias
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.paths import Home, check_model_name
from trtllm_serve_cli.repository.config import RepositoryPlan, ServingOptions
from trtllm_serve_cli.repository.parameters import check_parameters
from trtllm_serve_cli.repository.plan import (
    check_layout,
    check_name_is_free_in_layout,
    plan_repository,
)
from trtllm_serve_cli.repository.render import MANIFEST, write_repository
from trtllm_serve_cli.repository.store import find_model, read_manifest
from trtllm_serve_cli.sources import (
    Checkpoint,
    EngineSource,
    FetchOptions,
    FetchPlan,
    GgufSource,
    HubSource,
    LocalSource,
    PypiSource,
    Source,
    fetch_checkpoint,
    inspect_gguf,
    parse_source,
    plan_fetch,
)
from trtllm_serve_cli.sources.fetch import apply_revision

# Engine kinds that are there before an import: why.
NOTHING_TO_BUILD = {
    "tensorrt": "There is nothing to build: the engine is there.",
    "vllm": "There is nothing to build: vLLM serves the checkpoint as it is.",
}
Say = Callable[[str], None]


class Build(Protocol):
    """What `build_engine` does."""

    def __call__(self, plan: BuildPlan, *, force: bool, say: Say, on_line: Say) -> Engine: ...


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
    """What an import would do.

    `build` is None while there is no checkpoint here to plan on, and for the engine kinds of
    `NOTHING_TO_BUILD`.
    """

    request: ImportRequest
    source: Source
    fetch: FetchPlan
    choice: EngineChoice
    build: BuildPlan | None
    repository: Path

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`."""
        return {
            "model": self.request.name,
            "source": str(self.source),
            "engine_kind": self.choice.kind,
            "engine_reason": self.choice.reason,
            "layout": self.request.serving.layout,
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
        lines = [self.fetch.description, self.choice.reason]
        if self.choice.kind in NOTHING_TO_BUILD:
            lines.append(NOTHING_TO_BUILD[self.choice.kind])
        elif self.build is None:
            lines.append("The build is planned when the checkpoint is here.")
        else:
            lines.append(self.build.describe())
        return "\n".join(lines)


def plan_import(request: ImportRequest, home: Home) -> ImportPlan:
    """What importing would do, found out without a network and without writing anything.

    Raises `BadInput` for a name, source or option that cannot be used.
    """
    check_model_name(request.name)
    check_name_is_free_in_layout(request.name)
    source = apply_revision(_find_source(request, home), request.fetch.revision)
    choice = _choose_kind(request, source)
    check_layout(request.serving.layout, choice.kind)
    check_parameters(request.serving.parameters, choice.kind)
    fetch = plan_fetch(source, home=home)
    repository = request.repository or home.models / request.name
    build = None
    if choice.kind not in NOTHING_TO_BUILD:
        checkpoint = _find_checkpoint(request, source, fetch, home)
        build = _plan_build(request, checkpoint, home) if checkpoint else None
    elif isinstance(source, EngineSource):
        request = _with_tokenizer(request, source)
        engine = _describe_tensorrt(request, source)
        plan_repository(request.name, engine, request.serving)
    return ImportPlan(request, source, fetch, choice, build, repository)


def build_model(
    request: ImportRequest,
    home: Home,
    *,
    force: bool,
    say: Say,
    on_line: Say,
    build: Build = build_engine,
) -> Engine:
    """Fetch the checkpoint and build its engine, unless it is there. Raises `TllmError`s."""
    plan = plan_import(request, home)
    with _locked(home, request.name, say):
        return _obtain_engine(plan, home, force=force, say=say, on_line=on_line, build=build)


def import_model(
    request: ImportRequest,
    home: Home,
    *,
    force: bool,
    say: Say,
    on_line: Say,
    build: Build = build_engine,
) -> tuple[RepositoryPlan, Path]:
    """Fetch, build and render; returns what was rendered and where.

    What is there already is used again. Raises `RepositoryError` when the name belongs to another
    source and `force` is not given, `BadInput` when the repository's folder holds something that is
    no model repository, and whatever the stages raise.
    """
    plan = plan_import(request, home)
    with _locked(home, request.name, say):
        _check_replaceable(plan.repository)
        if not force:
            _check_not_taken(request.name, plan)
        engine = _obtain_engine(plan, home, force=force, say=say, on_line=on_line, build=build)
        rendered = plan_repository(request.name, engine, plan.request.serving)
        write_repository(rendered, plan.repository)
    return rendered, plan.repository


def _choose_kind(request: ImportRequest, source: Source) -> EngineChoice:
    """The engine kind that the source or the layout says already, or else what is asked for."""
    wanted = request.engine
    if isinstance(source, EngineSource):
        if wanted not in ("auto", "tensorrt"):
            raise BadInput(
                f"{source} is no engine of the kind {wanted}.",
                why="engine:DIR is a TensorRT engine",
                next_step="leave --engine out, or name a checkpoint: -s hf:ORG/NAME",
            )
        return EngineChoice("tensorrt", "Engine kind tensorrt: that is what engine:DIR holds.")
    if request.serving.layout == "vllm" and wanted in ("auto", "vllm"):
        return EngineChoice("vllm", "Engine kind vllm: that is what the layout is for.")
    return choose_engine_kind(wanted)


def _obtain_engine(
    plan: ImportPlan, home: Home, *, force: bool, say: Say, on_line: Say, build: Build
) -> Engine:
    request, source = plan.request, plan.source
    say(plan.choice.reason)
    if isinstance(source, EngineSource):
        return _describe_tensorrt(request, source)
    checkpoint = fetch_checkpoint(source, home=home, options=request.fetch, say=say)
    if plan.choice.kind == "vllm":
        return describe_vllm(request.name, checkpoint)
    return build(_plan_build(request, checkpoint, home), force=force, say=say, on_line=on_line)


def _with_tokenizer(request: ImportRequest, source: EngineSource) -> ImportRequest:
    """The tokenizer's folder is absolute: the server runs elsewhere."""
    given = request.serving.parameters
    folder = Path(given.get("tokenizer_dir", source.path)).expanduser().absolute()
    parameters = {**given, "tokenizer_dir": str(folder)}
    serving = dataclasses.replace(request.serving, parameters=parameters)
    return dataclasses.replace(request, serving=serving)


def _describe_tensorrt(request: ImportRequest, source: EngineSource) -> Engine:
    folder = Path(request.serving.parameters["tokenizer_dir"])
    return describe_tensorrt(request.name, source.path, folder, str(source))


def _find_source(request: ImportRequest, home: Home) -> Source:
    """Paths in it are absolute: what is asked for from here is the same from elsewhere."""
    source = parse_source(_name_source(request, home))
    if isinstance(source, LocalSource | GgufSource | EngineSource):
        return dataclasses.replace(source, path=source.path.absolute())
    return source


def _name_source(request: ImportRequest, home: Home) -> str:
    if request.source is not None:
        return request.source
    alias = find_alias(request.name)
    if alias is None and (known := find_model(home, request.name)):
        return known.source
    return (alias or resolve_alias(request.name)).source


def _find_checkpoint(
    request: ImportRequest, source: Source, fetch: FetchPlan, home: Home
) -> Checkpoint | None:
    """The checkpoint if it is here for certain: what a hub's cache holds, the hub has to say."""
    match source:
        case HubSource():
            return None
        case PypiSource():
            found = fetch.destination
            return inspect_gguf(found, source=str(source)) if fetch.is_cached else None
        case EngineSource():
            return None
        case LocalSource() | GgufSource():
            return fetch_checkpoint(source, home=home, options=request.fetch, say=lambda text: None)


def _plan_build(request: ImportRequest, checkpoint: Checkpoint, home: Home) -> BuildPlan:
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


def _check_replaceable(repository: Path) -> None:
    """A repository's folder is replaced whole, so it must not hold anything else."""
    if not repository.exists() or (repository / MANIFEST).exists():
        return
    if not repository.is_dir() or any(repository.iterdir()):
        raise BadInput(
            f"{repository} holds something else.",
            why="the model repository would take the place of all that is there",
            next_step="move it away, or name a new folder with --repo DIR",
        )


def _check_not_taken(name: str, plan: ImportPlan) -> None:
    if not (plan.repository / MANIFEST).exists():
        return
    taken_by = parse_source(read_manifest(plan.repository).source)
    if _unpinned(taken_by) != _unpinned(plan.source):
        raise RepositoryError(
            f"The name {name} is taken.",
            why=f"it was imported from {taken_by}, not from {plan.source}",
            next_step="choose another name with -m NAME, or replace it with --force",
        )


def _unpinned(source: Source) -> Source:
    """A pinned hub source says more than what was asked for: the same up to its commit."""
    return dataclasses.replace(source, revision=None) if isinstance(source, HubSource) else source


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
