"""Plan a model import before downloading large files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.container import ContainerOptions
from trtllm_serve_cli.build.engine import Engine, find_engine
from trtllm_serve_cli.build.run import find_missing_module
from trtllm_serve_cli.build.store import place_engine
from trtllm_serve_cli.catalog.entries import find_alias, resolve_alias
from trtllm_serve_cli.engine_kinds.dispatch import (
    check_computes_embeddings,
    find_tools,
    plan_build,
)
from trtllm_serve_cli.engine_kinds.machine import EngineChoice, Machine
from trtllm_serve_cli.engine_kinds.registry import AUTO, UPSTREAM, find_kind
from trtllm_serve_cli.engine_kinds.selection import (
    choose_engine_kind,
    choose_for_format,
    choose_for_layout,
    detect_machine,
    find_engine_source_kind,
    find_native_kind,
)
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import (
    BadInput,
    MissingPart,
    RepositoryError,
    explain_invalid_file,
)
from trtllm_serve_cli.importing.declaration import Declaration, override
from trtllm_serve_cli.importing.import_checks import (
    check_mode,
    check_name,
    describe_path_problem,
    find_path_problem,
)
from trtllm_serve_cli.importing.unused_options import refuse_unused
from trtllm_serve_cli.paths import Home, expand_user
from trtllm_serve_cli.repository.model.parameters import check_parameters, refuse_of_upstream
from trtllm_serve_cli.repository.model.store import (
    MANIFEST,
    ImportedModel,
    find_model,
    read_manifest,
)
from trtllm_serve_cli.repository.planning.repository_plan import (
    check_combination,
    check_layout,
    check_name_is_free_in_layout,
    check_task,
    plan_repository,
)
from trtllm_serve_cli.repository.settings.preserved_settings import (
    PreservedSettings,
    choose_preserved,
)
from trtllm_serve_cli.sizing.gpus import parse_gpu_ids
from trtllm_serve_cli.sources.checkpoint import Checkpoint, FetchOptions
from trtllm_serve_cli.sources.engine_source import EngineSource
from trtllm_serve_cli.sources.fetch import apply_revision, inspect_source, plan_fetch
from trtllm_serve_cli.sources.registry import parse_source
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, Source


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The plan for importing a model.

    - `build`: the build plan, or `None` if the source is an engine or if the checkpoint cannot be
      inspected before the download.
    - `repository`: the model repository folder.
    - `preserved`: the `tllm set` settings that the import keeps or drops.
    - `path_problem`: the error for a folder that Triton cannot use outside a container, or `None`.
    """

    declaration: Declaration
    source: Source
    fetch: FetchPlan
    machine: Machine
    choice: EngineChoice
    build: BuildPlan | None
    repository: Path
    preserved: PreservedSettings
    path_problem: BadInput | None = None

    @property
    def is_built(self) -> bool:
        """True if the engine already exists. False if the plan has no build or no build steps."""
        plan = self.build
        return (
            plan is not None
            and bool(plan.steps)
            and find_engine(plan.engine_dir, plan.fingerprint) is not None
        )

    @property
    def is_from_catalog(self) -> bool:
        """True if the model's shape is from the catalog, not from its checkpoint."""
        return self.build is not None and self.build.checkpoint.config is not None

    @property
    def missing(self) -> MissingPart | None:
        """The error for a missing program or package that the import requires, or `None`."""
        if self.choice.missing or self.build is None or self.is_built:
            return self.choice.missing
        container = self.build.container
        return (container.problem if container else None) or find_missing_module(self.build)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-compatible dict."""
        missing = self.missing
        return {
            "model": self.declaration.model.name,
            "source": str(self.source),
            "engine_kind": self.choice.kind,
            "engine_reason": self.choice.reason,
            "missing": missing and missing.what,
            "path_problem": self.path_problem and self.path_problem.what,
            "layout": self.declaration.repository.layout,
            "fetch": {
                "description": self.fetch.description,
                "destination": str(self.fetch.destination),
                "is_cached": self.fetch.is_cached,
            },
            "build": self.build.as_dict() if self.build else None,
            "is_built": self.is_built,
            "is_from_catalog": self.is_from_catalog,
            "repository": str(self.repository),
            "kept": dict(self.preserved.kept),
            "dropped": dict(self.preserved.dropped),
        }

    def describe(self) -> str:
        """Return a short description of the plan."""
        lines = [self.fetch.description]
        if self.is_from_catalog:
            lines.append(
                "The model's dimensions are from tllm's catalog, because config.json could not "
                "be downloaded. COMMIT is a placeholder for the commit to download."
            )
        lines.append(self.choice.reason)
        if missing := self.missing:
            lines.append(
                f"Missing on this machine: {missing.what} To fix this, {missing.next_step}."
            )
        if self.path_problem:
            lines.append(describe_path_problem(self.path_problem))
        if isinstance(self.source, EngineSource):
            lines.append("The source is an engine, so nothing is built.")
        elif sentence := find_kind(self.choice.kind).building.no_build_reason:
            lines.append(sentence)
            lines += self.build.describe().splitlines() if self.build else ()
        elif self.build is None:
            lines.append("The build is planned after the checkpoint is downloaded.")
        elif self.is_built:
            lines.append(f"Using the existing engine: {self.build.engine_dir}")
            lines.append("With --force, the engine is rebuilt:")
            lines.append(self.build.describe())
        else:
            lines.append(self.build.describe())
        return "\n".join(lines)


def plan_import(
    declaration: Declaration,
    home: Home,
    *,
    machine: Machine | None = None,
    is_dry_run: bool = False,
) -> ImportPlan:
    """Plan an import without downloading large files.

    Raise `BadInput` if the name, the source or an option is not valid. Raise `UnknownModel` if the
    declaration has no source and the name is unknown, or `SourceError` if the checkpoint is
    rejected or cannot be inspected. Raise `MissingPart` if the engine kind or a required package
    is not installed. In a dry run with `--engine KIND`, the plan reports a missing engine
    kind instead of raising `MissingPart`.
    """
    check_name(declaration.model)
    check_name_is_free_in_layout(declaration.model.name)
    source = apply_revision(_find_source(declaration, home), declaration.model.revision)
    machine = machine or _detect_machine(declaration)
    choice = _choose_kind(declaration, source, machine, is_dry_run=is_dry_run)
    refuse_unused(declaration, choice.kind, source)
    check_mode(declaration, choice.kind)
    check_layout(declaration.repository.layout, choice.kind)
    check_parameters(declaration.repository.parameters, choice.kind)
    refuse_of_upstream(declaration.repository.parameters, choice.kind)
    options = fetch_options(declaration, choice)
    fetch = plan_fetch(source, home=home, needs_weights=options.needs_weights)
    repository = declaration.repository.dir or home.models / declaration.model.name
    preserved = find_preserved_settings(declaration, source, choice.kind, repository)
    check_combination({**preserved.kept, **declaration.repository.parameters}, choice.kind)
    build = None
    if isinstance(source, EngineSource):
        declaration = _with_tokenizer(declaration, source, preserved.kept)
        engine = describe_engine_source(declaration, source)
        plan_repository(declaration.model.name, engine, serving_options(declaration))
    elif checkpoint := inspect_source(source, home=home, options=options):
        if checkpoint.is_embedding_model and declaration.repository.layout == "inflight":
            if declaration.engine.kind != AUTO:
                check_computes_embeddings(find_kind(choice.kind), checkpoint.source)
            # Plan again, because the layout determines which engine kinds are suitable.
            declared = override(declaration, {"repository": {"layout": "embedding"}})
            return plan_import(declared, home, machine=machine, is_dry_run=is_dry_run)
        check_task(declaration.repository.layout, is_embedding_model=checkpoint.is_embedding_model)
        build = plan_engine(
            request_build(declaration, choice, checkpoint, home, preserved.kept), declaration, home
        )
    problem = find_path_problem(declaration, home)
    return ImportPlan(
        declaration, source, fetch, machine, choice, build, repository, preserved, problem
    )


def find_source(name: str, home: Home) -> Source:
    """Return the source of a catalog entry or imported model. Catalog entries take precedence.

    Raise `UnknownModel` if neither the catalog nor the imported models contain the name, or
    `RepositoryError` if the imported model's manifest cannot be read.
    """
    alias = find_alias(name)
    if alias is None and (imported := find_model(home, name)):
        return parse_source(imported.source)
    return parse_source((alias or resolve_alias(name)).source)


def serving_options(declaration: Declaration) -> ServingOptions:
    """Return the serving options, including the limits from the build options."""
    return ServingOptions(
        max_batch_size=declaration.build.max_batch_size,
        max_seq_len=declaration.build.max_seq_len,
        max_num_tokens=declaration.build.max_num_tokens,
        max_beam_width=declaration.build.max_beam_width,
        parameters=declaration.repository.parameters,
        layout=declaration.repository.layout,
    )


def fetch_options(declaration: Declaration, choice: EngineChoice) -> FetchOptions:
    """Return the options for fetching the checkpoint.

    The weights are fetched only if the engine kind requires them.
    """
    model = declaration.model
    return FetchOptions(
        model.revision,
        model.trust_remote_code,
        model.allow_pickle,
        needs_weights=find_kind(choice.kind).building.needs_weights,
    )


def find_preserved_settings(
    declaration: Declaration, source: Source, engine_kind: str, repository: Path
) -> PreservedSettings:
    """Return the settings of the existing repository that the import preserves or drops.

    If the repository was imported from another source, the import drops all settings. Return no
    settings if the repository does not exist. If its manifest is not valid, the result contains the
    problem. Raise `RepositoryError` if reading the manifest fails, because the import would
    otherwise lose its settings.
    """
    if not (repository / MANIFEST).exists():
        return PreservedSettings()
    try:
        imported = read_manifest(repository)
    except RepositoryError as error:
        cause = error.__cause__
        if isinstance(cause, OSError):
            raise
        assert isinstance(cause, Exception)
        return PreservedSettings(problem=explain_invalid_file(str(repository / MANIFEST), cause))
    if not _is_imported_from(source, imported):
        return PreservedSettings(dropped=imported.preserved)
    return choose_preserved(imported, serving_options(declaration), engine_kind)


def _is_imported_from(source: Source, imported: ImportedModel) -> bool:
    """Return whether the model was imported from any revision of `source`."""
    try:
        return parse_source(imported.source).unpinned() == source.unpinned()
    except BadInput:
        return False


def describe_engine_source(declaration: Declaration, source: EngineSource) -> Engine:
    """Return the engine in the source's folder, with the tokenizer from `tokenizer_dir`."""
    describe = find_engine_source_kind().building.describe_source
    assert describe is not None
    folder = Path(declaration.repository.parameters["tokenizer_dir"])
    return describe(declaration.model.name, source.path, folder, str(source))


def request_build(
    declaration: Declaration,
    choice: EngineChoice,
    checkpoint: Checkpoint,
    home: Home,
    kept: Mapping[str, str],
) -> BuildRequest:
    """Return the request to build an engine from the checkpoint.

    `kept` contains the settings from `tllm set` that the import keeps. The request also includes
    the build options that these settings and the declared parameters require.
    """
    return BuildRequest(
        model_name=declaration.model.name,
        checkpoint=checkpoint,
        engine_dir=declaration.engine.dir or home.engines,
        kind=choice.kind,
        options=find_kind(choice.kind).building.complete_options(
            declaration.build, {**kept, **declaration.repository.parameters}
        ),
        trust_remote_code=declaration.model.trust_remote_code,
        gpu=declaration.engine.gpu,
        timing=declaration.engine.timing,
    )


def find_build_tools(declaration: Declaration) -> Toolchain:
    """Return the toolchain for the declared engine, on this machine or in a container.

    Raise `BadInput` if the GPUs, the version or the container settings are not valid.
    """
    engine = declaration.engine
    container = None
    if engine.mode == "container":
        gpus = parse_gpu_ids(engine.gpus)
        examples = engine.examples and engine.examples.absolute()
        container = ContainerOptions(engine.container_engine, engine.image, examples, gpus)
    return find_tools(engine.trtllm_version, container)


def plan_engine(request: BuildRequest, declaration: Declaration, home: Home) -> BuildPlan:
    """Plan an engine build and choose the engine folder.

    If the plan has no build steps, do not choose a folder. Raise the same errors as
    `find_build_tools` and `plan_build`.
    """
    plan = plan_build(request, find_build_tools(declaration))
    return choose_engine_dir(plan, declaration, home) if plan.steps else plan


def choose_engine_dir(plan: BuildPlan, declaration: Declaration, home: Home) -> BuildPlan:
    """Return the plan with a folder in the engine store, unless the declaration sets a folder."""
    return plan if declaration.engine.dir else place_engine(plan, home.engines)


def _find_source(declaration: Declaration, home: Home) -> Source:
    """Return the declared source, or the source that `find_source` returns for the model's name.

    Paths in the source are absolute, so that the source is valid in any working directory.
    """
    model = declaration.model
    source = find_source(model.name, home) if model.source is None else parse_source(model.source)
    return source.absolute()


def _detect_machine(declaration: Declaration) -> Machine:
    return detect_machine(
        declaration.engine.kind, declaration.repository.parameters.get("engine_python", "")
    )


def _choose_kind(
    declaration: Declaration, source: Source, machine: Machine, *, is_dry_run: bool
) -> EngineChoice:
    """Return the engine kind for the import, and the reason for this choice.

    An `engine:DIR` source requires the TensorRT engine kind. If the requested kind is "auto", the
    machine, `--mode container`, the layout and the checkpoint's format determine the kind.
    Otherwise, use the requested kind. Raise `BadInput` if the source cannot be used with the
    requested kind, or if `--trtllm-version` is not valid. Raise `MissingPart` if the kind is not
    installed. In a dry run for a specific kind, store this error in the choice instead.
    """
    requested = declaration.engine.kind
    if isinstance(source, EngineSource):
        return _choose_for_engine_source(source, requested)
    if declaration.engine.mode == "container" and requested == AUTO:
        return EngineChoice(UPSTREAM, f"Engine kind {UPSTREAM}: --mode container requires it.")
    layout = declaration.repository.layout
    if (native := find_native_kind(layout)) and requested in (AUTO, native.name):
        is_readable = (
            isinstance(source, CheckpointSource) and source.format in native.building.formats
        )
        if is_readable:
            why = f"Engine kind {native.name}: the {layout} layout uses this kind's Triton backend."
            return EngineChoice(native.name, why)
    try:
        choice = choose_engine_kind(
            requested, machine, trtllm_version=declaration.engine.trtllm_version
        )
    except MissingPart as missing:
        if not is_dry_run or requested == AUTO:
            raise
        return EngineChoice(requested, f"Engine kind {requested}, as requested.", missing=missing)
    is_gguf = isinstance(source, CheckpointSource) and source.format == "gguf"
    if requested == AUTO and is_gguf and "gguf" not in find_kind(choice.kind).building.formats:
        kind = choose_for_format("gguf", machine).kind
        return EngineChoice(kind, f"Engine kind {kind}: it reads GGUF files.")
    if requested == AUTO and layout not in find_kind(choice.kind).serving.layouts:
        return choose_for_layout(layout, machine)
    return choice


def _choose_for_engine_source(source: EngineSource, requested: str) -> EngineChoice:
    name = find_engine_source_kind().name
    if requested not in (AUTO, name):
        raise BadInput(
            f"{source} cannot be used with --engine {requested}.",
            why=f"engine:DIR refers to an existing TensorRT engine, which requires --engine {name}",
            next_step="omit --engine, or pass a checkpoint with -s hf:ORG/NAME",
        )
    return EngineChoice(name, f"Engine kind {name}: engine:DIR is a TensorRT engine.")


def _with_tokenizer(
    declaration: Declaration, source: EngineSource, kept: Mapping[str, str]
) -> Declaration:
    """Return the declaration with the absolute path of the tokenizer folder.

    The default is `tokenizer_dir` in `kept` or, if this parameter is not set, the source folder.
    The path must be absolute, because the server has a different working directory.
    """
    parameters = declaration.repository.parameters
    default = kept.get("tokenizer_dir", source.path)
    folder = expand_user(Path(parameters.get("tokenizer_dir", default))).absolute()
    parameters = {**parameters, "tokenizer_dir": str(folder)}
    repository = dataclasses.replace(declaration.repository, parameters=parameters)
    return dataclasses.replace(declaration, repository=repository)
