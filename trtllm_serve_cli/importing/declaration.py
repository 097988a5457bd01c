"""Read and write `tllm.yaml` files, which declare a model and its import options."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from trtllm_serve_cli.build.engine_options import PATH_ENDINGS, EngineOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.option_fields import PartOf
from trtllm_serve_cli.paths import expand_user
from trtllm_serve_cli.repository.model.model_repository import UPSTREAM_LAYOUTS, OpenRepository
from trtllm_serve_cli.repository.model.parameters import resolve_paths
from trtllm_serve_cli.repository.model.store import MANIFEST, ImportedModel, is_imported
from trtllm_serve_cli.repository.settings.settings import Setting, list_settings
from trtllm_serve_cli.yaml_schema import parse_yaml, render_yaml

_SOURCES_OF_FILES = ("local:", "gguf:", "engine:")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The content of a `tllm.yaml` file, with one field for each section.

    `launch` contains only the `LaunchOptions` fields that the file sets.
    """

    model: ModelSection
    engine: EngineSection = field(default_factory=EngineSection)
    build: EngineOptions = field(default_factory=EngineOptions)
    repository: RepositorySection = field(default_factory=RepositorySection)
    launch: Annotated[Mapping[str, Any], PartOf(LaunchOptions)] = field(default_factory=dict)


def read_declaration(path: Path) -> Declaration:
    """Read a `tllm.yaml` file.

    Raise `BadInput` if the file cannot be read or is invalid. The message contains the line number,
    if known.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step="pass a readable tllm.yaml file with -f FILE",
        ) from error
    return parse_declaration(text, where=str(path), folder=path.absolute().parent)


def parse_declaration(text: str, *, where: str, folder: Path) -> Declaration:
    """Parse the text of a `tllm.yaml` file and resolve its relative paths against `folder`.

    Raise `BadInput` if `text` is invalid. The message contains the file name `where` and the line
    number if known.
    """
    declared = parse_yaml(Declaration, text, where=where)
    return Declaration(
        model=dataclasses.replace(declared.model, source=_in_folder(declared.model.source, folder)),
        engine=dataclasses.replace(
            declared.engine,
            dir=_join(folder, declared.engine.dir),
            timing=_join(folder, declared.engine.timing),
            examples=_join(folder, declared.engine.examples),
        ),
        build=with_absolute_paths(declared.build, folder),
        repository=_repository_in(folder, declared.repository),
        launch=_launch_in(folder, declared.launch),
    )


def _repository_in(folder: Path, repository: RepositorySection) -> RepositorySection:
    """Return the `repository` section with its paths resolved against `folder`."""
    return dataclasses.replace(
        repository,
        dir=_join(folder, repository.dir),
        parameters=resolve_paths(repository.parameters, folder),
    )


def _launch_in(folder: Path, launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `launch` section with its paths resolved against `folder`."""
    return {
        name: _join(folder, value) if isinstance(value, Path) else value
        for name, value in launch.items()
    }


def with_absolute_paths(options: EngineOptions, folder: Path) -> EngineOptions:
    """Return the options with their paths resolved against `folder`.

    `calib_dataset` may also be a data set name, so it is resolved only if the folder exists.
    """

    def join(text: str) -> str:
        return str(folder / expand_user(Path(text)))

    dataset = options.calib_dataset
    return dataclasses.replace(
        options,
        calib_dataset=join(dataset) if dataset and Path(join(dataset)).is_dir() else dataset,
        lora_dir=tuple(map(join, options.lora_dir)),
        speculative_model=options.speculative_model and join(options.speculative_model),
        flags={
            name: join(value) if name.endswith(PATH_ENDINGS) else value
            for name, value in options.flags.items()
        },
    )


def override(declaration: Declaration, overrides: Mapping[str, Mapping[str, Any]]) -> Declaration:
    """Return the declaration with the values in `overrides` applied.

    `overrides` maps section names to values, keyed by field. A value of `None` keeps the declared
    value. Template parameters and build flags in `overrides` are merged into the declared
    parameters and flags.
    """
    sections = {}
    for name, fields in overrides.items():
        section = getattr(declaration, name)
        changes = {field: value for field, value in fields.items() if value is not None}
        for table in ("parameters", "flags"):
            if table in changes:
                changes[table] = {**getattr(section, table), **changes[table]}
        sections[name] = dataclasses.replace(section, **changes)
    return dataclasses.replace(declaration, **sections)


def declare_model(model: ImportedModel, repository: OpenRepository) -> Declaration:
    """Return the declaration that recreates an imported model in its current state.

    The declaration contains the pinned source, the selected engine kind and, for a repository
    outside TLLM_HOME, its folder. It also contains the parameters that the original declaration,
    `tllm set` or an edit of the model files has changed. Raise `BadInput` if the manifest's
    declaration is not valid, or if a parameter has different values in the repository's models.
    Raise `RepositoryError` if a `config.pbtxt` cannot be parsed.
    """
    where = str(model.path / MANIFEST)
    named = {"model": {"name": model.name}, **model.declaration}
    declaration = parse_yaml(Declaration, json.dumps(named), where=where)
    folder = None if is_imported(model.path, model.name) else model.path
    declaration = dataclasses.replace(
        declaration,
        model=dataclasses.replace(declaration.model, source=model.source, revision=None),
        repository=dataclasses.replace(declaration.repository, dir=folder),
    )
    served = {"layout": model.layout, "parameters": _changed_parameters(repository)}
    return override(declaration, {"engine": {"kind": model.engine_kind}, "repository": served})


def _changed_parameters(repository: OpenRepository) -> dict[str, str]:
    if repository.layout not in UPSTREAM_LAYOUTS:
        return {}
    changed = {}
    rendered = repository.manifest.get("parameters", {})
    for each in list_settings(repository):
        if not each.parameter.applies_to(repository.kind) or each.parameter.is_fact:
            continue
        name = each.parameter.name
        if len(set(each.values.values())) > 1:
            raise _inconsistent_setting(repository, each)
        was_emptied = each.value == "" != rendered.get(name, "")
        if each.origin in ("set", "file") or (each.values and was_emptied):
            changed[name] = each.value
    return changed


def _inconsistent_setting(repository: OpenRepository, setting: Setting) -> BadInput:
    name = setting.parameter.name
    values = ", ".join(f"{model}: {value or 'empty'}" for model, value in setting.values.items())
    return BadInput(
        f"{name} has different values in the models of {repository.name}.",
        why=(
            "a tllm.yaml file sets one value for all models of a repository, but the values are "
            f"{values}"
        ),
        next_step=(
            f"set the same value in all models with `tllm set {repository.target} {name}=VALUE`"
        ),
    )


def render_declaration(declaration: Declaration) -> str:
    """Return the declaration as the text of a `tllm.yaml` file, without default values."""
    return render_yaml(declaration)


def _in_folder(source: str | None, folder: Path) -> str | None:
    for kind in _SOURCES_OF_FILES:
        if source is not None and source.startswith(kind):
            return kind + str(_join(folder, Path(source.removeprefix(kind))))
    return source


def _join(folder: Path, path: Path | None) -> Path | None:
    return path and folder / expand_user(path)
