"""The whole way from a model's name to its model repository, one step after the other."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trtllm_serve_cli.build import (
    AS_IT_IS,
    BuildPlan,
    BuildRequest,
    Engine,
    EngineChoice,
    Machine,
    build_engine,
    choose_engine_kind,
    describe_checkpoint,
    describe_tensorrt,
    find_engine,
    find_tools,
    look_at_machine,
    plan_build,
    refuse_simulated,
)
from trtllm_serve_cli.build.store import lock_of, place_engine
from trtllm_serve_cli.catalog import find_alias, resolve_alias
from trtllm_serve_cli.declaration import Declaration
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.paths import Home, check_model_name, hold_lock
from trtllm_serve_cli.repository.config import RepositoryPlan, ServingOptions
from trtllm_serve_cli.repository.kept import WasSet, choose_kept
from trtllm_serve_cli.repository.parameters import check_parameters
from trtllm_serve_cli.repository.plan import (
    check_layout,
    check_name_is_free_in_layout,
    plan_repository,
)
from trtllm_serve_cli.repository.render import MANIFEST, write_repository
from trtllm_serve_cli.repository.store import find_model, read_manifest
from trtllm_serve_cli.repository.uses import remember_use
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
    Watch,
    fetch_checkpoint,
    inspect_source,
    parse_source,
    plan_fetch,
)
from trtllm_serve_cli.sources.fetch import apply_revision
from trtllm_serve_cli.typed_yaml import plain_changes

Say = Callable[[str], None]


def _say_nothing(text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Display:
    """Whom an import tells what it does: sentences, the output of a step, how far a download is.

    Without a `watch`, `say` hears of a download now and then.
    """

    say: Say = _say_nothing
    on_line: Say = _say_nothing
    watch: Watch | None = None


class Build(Protocol):
    """What `build_engine` does."""

    def __call__(self, plan: BuildPlan, *, force: bool, say: Say, on_line: Say) -> Engine: ...


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import would do.

    `build` is None while there is no checkpoint here to plan on, and for an engine that is there.
    """

    asked: Declaration
    source: Source
    fetch: FetchPlan
    choice: EngineChoice
    build: BuildPlan | None
    repository: Path
    was_set: WasSet

    @property
    def is_built(self) -> bool:
        """Whether the engine is there already."""
        plan = self.build
        return (
            plan is not None
            and bool(plan.steps)
            and find_engine(plan.engine_dir, plan.fingerprint) is not None
        )

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`."""
        return {
            "model": self.asked.model.name,
            "source": str(self.source),
            "engine_kind": self.choice.kind,
            "engine_reason": self.choice.reason,
            "layout": self.asked.repository.layout,
            "fetch": {
                "description": self.fetch.description,
                "destination": str(self.fetch.destination),
                "is_cached": self.fetch.is_cached,
            },
            "build": self.build.as_dict() if self.build else None,
            "is_built": self.is_built,
            "repository": str(self.repository),
            "kept": dict(self.was_set.kept),
            "dropped": dict(self.was_set.dropped),
        }

    def describe(self) -> str:
        """The plan in a few lines."""
        lines = [self.fetch.description, self.choice.reason]
        if isinstance(self.source, EngineSource):
            lines.append("There is nothing to build: the engine is there.")
        elif self.choice.kind in AS_IT_IS:
            lines.append(AS_IT_IS[self.choice.kind])
            lines += self.build.describe().splitlines() if self.build else ()
        elif self.build is None:
            lines.append("The build is planned when the checkpoint is here.")
        elif self.is_built:
            lines.append(f"The engine is there already: {self.build.engine_dir}")
            lines.append("With --force, it is made anew:")
            lines.append(self.build.describe())
        else:
            lines.append(self.build.describe())
        return "\n".join(lines)


def plan_import(asked: Declaration, home: Home, *, machine: Machine | None = None) -> ImportPlan:
    """What importing would do, found out before anything large is fetched.

    Raises `BadInput` for a name, source or option that cannot be used.
    """
    check_model_name(asked.model.name)
    check_name_is_free_in_layout(asked.model.name)
    source = apply_revision(_find_source(asked, home), asked.model.revision)
    choice = _choose_kind(asked, source, machine or _look_at_machine(asked))
    refuse_simulated(choice.kind, asked.engine.gpu, asked.engine.timing)
    check_layout(asked.repository.layout, choice.kind)
    check_parameters(asked.repository.parameters, choice.kind)
    options = _fetch_options(asked, choice)
    fetch = plan_fetch(source, home=home, needs_weights=options.needs_weights)
    repository = asked.repository.dir or home.models / asked.model.name
    was_set = _find_what_was_set(asked, source, choice.kind, repository)
    build = None
    if isinstance(source, EngineSource):
        asked = _with_tokenizer(asked, source, was_set.kept)
        engine = _describe_tensorrt(asked, source)
        plan_repository(asked.model.name, engine, serving_options(asked))
    elif checkpoint := inspect_source(source, home=home, options=options):
        build = _plan_build(_build_request(asked, choice, checkpoint, home), asked, home)
    return ImportPlan(asked, source, fetch, choice, build, repository, was_set)


def build_model(
    asked: Declaration,
    home: Home,
    *,
    force: bool = False,
    display: Display = Display(),
    build: Build = build_engine,
) -> Engine:
    """Fetch the checkpoint and build its engine, unless it is there. Raises `TllmError`s."""
    plan = plan_import(asked, home)
    with (
        _locked(home, asked.model.name, display.say),
        _obtain_engine(plan, home, force=force, display=display, build=build) as engine,
    ):
        return engine


def import_model(
    asked: Declaration,
    home: Home,
    *,
    force: bool = False,
    display: Display = Display(),
    build: Build = build_engine,
) -> tuple[RepositoryPlan, Path]:
    """Fetch, build and render; returns what was rendered and where.

    What is there already is used again, and what `tllm set` changed is kept. Raises
    `RepositoryError` when the name belongs to another source and `force` is not given, `BadInput`
    when the repository's folder holds something that is no model repository, and whatever the
    stages raise.
    """
    plan = plan_import(asked, home)
    with _locked(home, asked.model.name, display.say):
        _check_replaceable(plan.repository)
        if not force:
            _check_not_taken(asked.model.name, plan)
        with _obtain_engine(plan, home, force=force, display=display, build=build) as engine:
            # Something may have been set meanwhile.
            was_set = _find_what_was_set(asked, plan.source, plan.choice.kind, plan.repository)
            for line in was_set.describe():
                display.say(line)
            rendered = _plan_repository(plan, engine, was_set.kept)
            rendered = dataclasses.replace(rendered, declaration=plain_changes(asked))
            write_repository(rendered, plan.repository)
            remember_use(home, plan.repository)
    return rendered, plan.repository


def _plan_repository(plan: ImportPlan, engine: Engine, kept: Mapping[str, str]) -> RepositoryPlan:
    options = dataclasses.replace(serving_options(plan.asked), engine_python=plan.choice.python)
    options = dataclasses.replace(options, parameters={**kept, **options.parameters})
    rendered = plan_repository(plan.asked.model.name, engine, options)
    return dataclasses.replace(
        rendered,
        asked=tuple(name for name in rendered.asked if name not in kept),
        was_set={name: rendered.parameters[name] for name in kept},
    )


def _find_what_was_set(
    asked: Declaration, source: Source, engine_kind: str, repository: Path
) -> WasSet:
    """What `tllm set` changed in the repository that is there, if there is one of ours."""
    with contextlib.suppress(RepositoryError, BadInput):
        known = read_manifest(repository)
        if _unpinned(parse_source(known.source)) != _unpinned(source):
            return WasSet(dropped=known.was_set)
        return choose_kept(known, serving_options(asked), engine_kind)
    return WasSet()


def serving_options(asked: Declaration) -> ServingOptions:
    """How the engine is to be served: within the limits it is to be built for."""
    return ServingOptions(
        max_batch_size=asked.build.max_batch_size,
        max_seq_len=asked.build.max_seq_len,
        max_num_tokens=asked.build.max_num_tokens,
        max_beam_width=asked.build.max_beam_width,
        parameters=asked.repository.parameters,
        layout=asked.repository.layout,
    )


def _fetch_options(asked: Declaration, choice: EngineChoice) -> FetchOptions:
    model = asked.model
    return FetchOptions(
        model.revision,
        model.trust_remote_code,
        model.allow_pickle,
        needs_weights=choice.kind != "sim",
    )


def _look_at_machine(asked: Declaration) -> Machine:
    return look_at_machine(asked.engine.kind, asked.repository.parameters.get("engine_python", ""))


def _choose_kind(asked: Declaration, source: Source, machine: Machine) -> EngineChoice:
    """The engine kind that the source or the layout says already, or else what is asked for."""
    wanted = asked.engine.kind
    if isinstance(source, EngineSource):
        if wanted not in ("auto", "tensorrt"):
            raise BadInput(
                f"{source} is no engine of the kind {wanted}.",
                why="engine:DIR is a TensorRT engine",
                next_step="leave --engine out, or name a checkpoint: -s hf:ORG/NAME",
            )
        return EngineChoice("tensorrt", "Engine kind tensorrt: that is what engine:DIR holds.")
    if asked.repository.layout == "vllm" and wanted in ("auto", "vllm"):
        return EngineChoice("vllm", "Engine kind vllm: that is what the layout is for.")
    choice = choose_engine_kind(wanted, machine, trtllm_version=asked.engine.trtllm_version)
    is_gguf = isinstance(source, GgufSource | PypiSource)
    if wanted == "auto" and is_gguf and choice.kind != "openvino":
        kind = choose_engine_kind("openvino", machine).kind
        return EngineChoice(kind, f"Engine kind {kind}: it is the one that reads GGUF files.")
    return choice


@contextmanager
def _obtain_engine(
    plan: ImportPlan, home: Home, *, force: bool, display: Display, build: Build
) -> Iterator[Engine]:
    """The engine, which nobody builds or removes meanwhile."""
    asked, source = plan.asked, plan.source
    display.say(plan.choice.reason)
    if isinstance(source, EngineSource):
        yield _describe_tensorrt(asked, source)
        return
    options = _fetch_options(asked, plan.choice)
    checkpoint = fetch_checkpoint(
        source, home=home, options=options, say=display.say, watch=display.watch
    )
    request = _build_request(asked, plan.choice, checkpoint, home)
    if request.kind in AS_IT_IS:
        yield describe_checkpoint(request, find_tools(asked.engine.trtllm_version))
        return
    planned = _plan_build(request, asked, home)
    with hold_lock(
        lock_of(home, planned.engine_dir, planned.fingerprint),
        lambda: display.say("Another tllm is building this engine; waiting for it to end …"),
    ):
        # It may have been built meanwhile, under another name.
        planned = _placed(planned, asked, home)
        yield build(planned, force=force, say=display.say, on_line=display.on_line)


def _with_tokenizer(
    asked: Declaration, source: EngineSource, kept: Mapping[str, str]
) -> Declaration:
    """The tokenizer's folder is absolute: the server runs elsewhere."""
    given = asked.repository.parameters
    known = kept.get("tokenizer_dir", source.path)
    folder = Path(given.get("tokenizer_dir", known)).expanduser().absolute()
    parameters = {**given, "tokenizer_dir": str(folder)}
    repository = dataclasses.replace(asked.repository, parameters=parameters)
    return dataclasses.replace(asked, repository=repository)


def _describe_tensorrt(asked: Declaration, source: EngineSource) -> Engine:
    folder = Path(asked.repository.parameters["tokenizer_dir"])
    return describe_tensorrt(asked.model.name, source.path, folder, str(source))


def _find_source(asked: Declaration, home: Home) -> Source:
    """Paths in it are absolute: what is asked for from here is the same from elsewhere."""
    said = asked.model.source
    source = find_source(asked.model.name, home) if said is None else parse_source(said)
    if isinstance(source, LocalSource | GgufSource | EngineSource):
        return dataclasses.replace(source, path=source.path.absolute())
    return source


def find_source(name: str, home: Home) -> Source:
    """Where a model comes from that only has a name: what the catalog says, or what it came from.

    Raises `UnknownModel` for a name that neither the catalog nor an import knows.
    """
    alias = find_alias(name)
    if alias is None and (known := find_model(home, name)):
        return parse_source(known.source)
    return parse_source((alias or resolve_alias(name)).source)


def _build_request(
    asked: Declaration, choice: EngineChoice, checkpoint: Checkpoint, home: Home
) -> BuildRequest:
    return BuildRequest(
        model_name=asked.model.name,
        checkpoint=checkpoint,
        engine_dir=asked.engine.dir or home.engines,
        kind=choice.kind,
        options=asked.build,
        trust_remote_code=asked.model.trust_remote_code,
        gpu=asked.engine.gpu,
        timing=asked.engine.timing,
    )


def _plan_build(request: BuildRequest, asked: Declaration, home: Home) -> BuildPlan:
    plan = plan_build(request, find_tools(asked.engine.trtllm_version))
    return _placed(plan, asked, home) if plan.steps else plan


def _placed(plan: BuildPlan, asked: Declaration, home: Home) -> BuildPlan:
    return plan if asked.engine.dir else place_engine(plan, home.engines)


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


def _locked(home: Home, name: str, say: Say) -> AbstractContextManager[None]:
    """One import of a model at a time; a second one waits and then finds it done."""
    return hold_lock(
        home.locks / f"{name}.lock",
        lambda: say(f"Another tllm is importing {name}; waiting for it to end …"),
    )
