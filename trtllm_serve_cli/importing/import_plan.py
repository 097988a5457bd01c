"""What importing a model would do, found out before anything large is fetched."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest
from trtllm_serve_cli.build.engine import Engine, find_engine
from trtllm_serve_cli.build.store import place_engine
from trtllm_serve_cli.catalog.entries import find_alias, resolve_alias
from trtllm_serve_cli.engine_kinds.dispatch import find_tools, plan_build, refuse_foreign_options
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.registry import AUTO, find_kind
from trtllm_serve_cli.engine_kinds.selection import (
    choose_engine_kind,
    choose_for_format,
    detect_machine,
    find_engine_source_kind,
    kinds_in_layout,
)
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.paths import Home, check_model_name
from trtllm_serve_cli.repository.model.parameters import check_parameters
from trtllm_serve_cli.repository.model.store import find_model, read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import (
    check_layout,
    check_name_is_free_in_layout,
    plan_repository,
)
from trtllm_serve_cli.repository.settings.preserved_settings import (
    PreservedSettings,
    choose_preserved,
)
from trtllm_serve_cli.sources.checkpoint import Checkpoint, FetchOptions
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.fetch import apply_revision, inspect_source, plan_fetch
from trtllm_serve_cli.sources.registry import parse_source
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, Source


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
    preserved: PreservedSettings

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
            "kept": dict(self.preserved.kept),
            "dropped": dict(self.preserved.dropped),
        }

    def describe(self) -> str:
        """The plan in a few lines."""
        lines = [self.fetch.description, self.choice.reason]
        if isinstance(self.source, EngineSource):
            lines.append("There is nothing to build: the engine is there.")
        elif sentence := find_kind(self.choice.kind).building.no_build_reason:
            lines.append(sentence)
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
    choice = _choose_kind(asked, source, machine or _detect_machine(asked))
    refuse_foreign_options(choice.kind, {"gpu": asked.engine.gpu, "timing": asked.engine.timing})
    check_layout(asked.repository.layout, choice.kind)
    check_parameters(asked.repository.parameters, choice.kind)
    options = fetch_options(asked, choice)
    fetch = plan_fetch(source, home=home, needs_weights=options.needs_weights)
    repository = asked.repository.dir or home.models / asked.model.name
    preserved = find_preserved_settings(asked, source, choice.kind, repository)
    build = None
    if isinstance(source, EngineSource):
        asked = _with_tokenizer(asked, source, preserved.kept)
        engine = describe_engine_source(asked, source)
        plan_repository(asked.model.name, engine, serving_options(asked))
    elif checkpoint := inspect_source(source, home=home, options=options):
        build = plan_engine(request_build(asked, choice, checkpoint, home), asked, home)
    return ImportPlan(asked, source, fetch, choice, build, repository, preserved)


def find_source(name: str, home: Home) -> Source:
    """Where a model comes from that only has a name: what the catalog says, or what it came from.

    Raises `UnknownModel` for a name that neither the catalog nor an import knows.
    """
    alias = find_alias(name)
    if alias is None and (known := find_model(home, name)):
        return parse_source(known.source)
    return parse_source((alias or resolve_alias(name)).source)


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


def fetch_options(asked: Declaration, choice: EngineChoice) -> FetchOptions:
    """Return how the checkpoint is fetched: not every engine kind needs its weights."""
    model = asked.model
    return FetchOptions(
        model.revision,
        model.trust_remote_code,
        model.allow_pickle,
        needs_weights=find_kind(choice.kind).building.needs_weights,
    )


def find_preserved_settings(
    asked: Declaration, source: Source, engine_kind: str, repository: Path
) -> PreservedSettings:
    """What `tllm set` changed in the repository that is there, if there is one of ours."""
    with contextlib.suppress(RepositoryError, BadInput):
        known = read_manifest(repository)
        if parse_source(known.source).unpinned() != source.unpinned():
            return PreservedSettings(dropped=known.preserved)
        return choose_preserved(known, serving_options(asked), engine_kind)
    return PreservedSettings()


def describe_engine_source(asked: Declaration, source: EngineSource) -> Engine:
    """Return the engine that the source is, with the tokenizer that goes with it."""
    describe = find_engine_source_kind().building.describe_source
    assert describe is not None
    folder = Path(asked.repository.parameters["tokenizer_dir"])
    return describe(asked.model.name, source.path, folder, str(source))


def request_build(
    asked: Declaration, choice: EngineChoice, checkpoint: Checkpoint, home: Home
) -> BuildRequest:
    """What is to be built of the checkpoint, and where."""
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


def plan_engine(request: BuildRequest, asked: Declaration, home: Home) -> BuildPlan:
    """The build of that, where its engine belongs."""
    plan = plan_build(request, find_tools(asked.engine.trtllm_version))
    return placed(plan, asked, home) if plan.steps else plan


def placed(plan: BuildPlan, asked: Declaration, home: Home) -> BuildPlan:
    """The plan with a folder of the engine store's, unless one was asked for."""
    return plan if asked.engine.dir else place_engine(plan, home.engines)


def _find_source(asked: Declaration, home: Home) -> Source:
    """Paths in it are absolute: what is asked for from here is the same from elsewhere."""
    said = asked.model.source
    source = find_source(asked.model.name, home) if said is None else parse_source(said)
    return source.absolute()


def _detect_machine(asked: Declaration) -> Machine:
    return detect_machine(asked.engine.kind, asked.repository.parameters.get("engine_python", ""))


def _choose_kind(asked: Declaration, source: Source, machine: Machine) -> EngineChoice:
    """Return the engine kind that the source or the layout implies, or else the requested one."""
    requested = asked.engine.kind
    if isinstance(source, EngineSource):
        return _choose_for_engine_source(source, requested)
    layout = asked.repository.layout
    fitting = kinds_in_layout(layout)
    if len(fitting) == 1 and requested in (AUTO, fitting[0].name):
        name = fitting[0].name
        return EngineChoice(name, f"Engine kind {name}: that is what the layout is for.")
    choice = choose_engine_kind(requested, machine, trtllm_version=asked.engine.trtllm_version)
    is_gguf = isinstance(source, CheckpointSource) and source.format == "gguf"
    if requested == AUTO and is_gguf and "gguf" not in find_kind(choice.kind).building.formats:
        kind = choose_for_format("gguf", machine).kind
        return EngineChoice(kind, f"Engine kind {kind}: it is the one that reads GGUF files.")
    return choice


def _choose_for_engine_source(source: EngineSource, requested: str) -> EngineChoice:
    name = find_engine_source_kind().name
    if requested not in (AUTO, name):
        raise BadInput(
            f"{source} is no engine of the kind {requested}.",
            why="engine:DIR is a TensorRT engine",
            next_step="leave --engine out, or name a checkpoint: -s hf:ORG/NAME",
        )
    return EngineChoice(name, f"Engine kind {name}: that is what engine:DIR holds.")


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
