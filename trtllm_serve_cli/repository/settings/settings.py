"""List a repository's parameters with their values and origins, or change the values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.file_changes import replace_files
from trtllm_serve_cli.repository.model.instances import with_instance_count
from trtllm_serve_cli.repository.model.model_repository import (
    CONFIG,
    UPSTREAM_LAYOUTS,
    OpenRepository,
    open_repository,
    unfilled,
    unreadable,
)
from trtllm_serve_cli.repository.model.parameters import (
    Parameter,
    check_parameters,
    load_parameters,
    refuse_of_upstream,
)
from trtllm_serve_cli.repository.model.store import MANIFEST, command_to_import_again
from trtllm_serve_cli.repository.pbtxt import (
    PbtxtError,
    change,
    fill,
    is_unfilled,
    list_unfilled,
    parse_config,
)
from trtllm_serve_cli.repository.validation.engine_limits import find_trtllm_version
from trtllm_serve_cli.repository.validation.validate import list_contradictions

# Parameters whose default values `tllm import` reads from the engine.
_FROM_ENGINE = frozenset(("engine_dir", "tokenizer_dir", "max_seq_len", "llm_args"))
_BATCHING = "dynamic_batching."
_TIMEOUT = f"{_BATCHING}default_queue_policy.default_timeout_microseconds"
_OVERRIDE = f"{_BATCHING}default_queue_policy.allow_timeout_override"


@dataclass(frozen=True, slots=True)
class Setting:
    """A parameter, its value in each model, and the origin of the value.

    `origin` is one of the following:

    - `set`: `tllm set` wrote the value.
    - `import`: the user requested the value at import.
    - `engine`: the import read the value from the engine.
    - `default`: the import wrote the default value.
    - `unset`: the value is missing, empty or an unfilled variable.
    - `file`: a user edited the file, or tllm did not render the repository.

    `imported` is the value that the last import wrote, or None if it is unknown or not different.
    """

    parameter: Parameter
    values: Mapping[str, str]
    origin: str
    imported: str | None = None

    @property
    def value(self) -> str:
        """The value, or a list `MODEL: VALUE, …` if the models have different values."""
        if len(set(self.values.values())) <= 1:
            return next(iter(self.values.values()), "")
        return ", ".join(f"{model}: {value}" for model, value in self.values.items())


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one value in a model's `config.pbtxt`.

    `old` is None if the change adds the value. If a template contains a `${name}` variable in an
    unexpected field, `place` is the variable instead of a field path.
    """

    parameter: str
    model: str
    place: str
    old: str | None
    new: str


def list_settings(repository: OpenRepository) -> list[Setting]:
    """Return the settings in the order of `parameters.yaml`.

    A parameter that has no effect on the engine kind or in tllm's models is included only if its
    value differs from the default. In a rendered repository, such a parameter must also be an entry
    of `parameters`, because tllm chooses the backend and the tensors of its models. Parameters are
    omitted if the layout has no field for them, or if they have no value and users cannot set them.
    Raise `BadInput` if the layout does not store settings in `config.pbtxt`, and `RepositoryError`
    if a file cannot be parsed.
    """
    _check_layout(repository)
    settings = []
    for parameter in load_parameters().values():
        values = {}
        for model, place in repository.places(parameter):
            if found := repository.values(model, place):
                values[model] = found[0]
        if not values and not _can_be_added(repository, parameter):
            continue
        is_foreign = parameter.of_upstream and repository.has_manifest
        if is_foreign or not parameter.applies_to(repository.kind):
            can_differ = parameter.is_entry or not repository.has_manifest
            is_shown = can_differ and set(values.values()) - {parameter.default} != set()
        else:
            is_shown = bool(values) or not parameter.is_fact
        if is_shown:
            origin = _origin(repository, parameter, values)
            imported = repository.manifest.get("parameters", {}).get(parameter.name)
            is_changed = origin in ("set", "file") and {imported} != set(values.values())
            settings.append(Setting(parameter, values, origin, imported if is_changed else None))
    return settings


def plan_changes(repository: OpenRepository, requested: Mapping[str, str]) -> list[Change]:
    """Return the changes that set the parameters in `requested` to their new values.

    A parameter is changed in all models that have a value for it. If no model has a value, the
    value is added to the models that support the parameter.

    Raise `BadInput` if the layout does not store settings in `config.pbtxt`, or if no model of the
    repository supports a parameter. Also raise `BadInput` if a name or value is not valid for the
    engine, or if values contradict each other. Raise `RepositoryError` if a file cannot be parsed.
    """
    _check_layout(repository)
    version = find_trtllm_version(repository)
    checked = check_parameters(requested, repository.kind, version)
    if repository.has_manifest:
        refuse_of_upstream(requested, repository.kind)
    values = with_instance_count(checked, repository.kind)
    return [
        each
        for name, value in values.items()
        for each in _changes_of(repository, load_parameters()[name], value)
    ]


def _check_layout(repository: OpenRepository) -> None:
    """Raise `BadInput` if the layout does not store settings in `config.pbtxt`."""
    if repository.layout in UPSTREAM_LAYOUTS:
        return
    if repository.layout == "embedding":
        raise BadInput(
            f"The settings of {repository.name} cannot be listed or changed.",
            why="`tllm show` and `tllm set` do not support the embedding layout",
            next_step="to change a setting, run "
            f"`{command_to_import_again(repository.path, repository.name)} --param NAME=VALUE`",
        )
    file = {"llmapi": "model.yaml", "vllm": "model.json"}[repository.layout]
    path = repository.path / next(iter(repository.texts)) / "1" / file
    raise BadInput(
        f"The settings of {repository.name} are not stored in config.pbtxt files.",
        why=f"the {repository.layout} layout stores the engine arguments in {file}",
        next_step=f"edit {path}, then restart the server",
    )


def apply_changes(repository: OpenRepository, changes: list[Change]) -> dict[str, str]:
    """Return the new text of each `config.pbtxt` that changes, keyed by model.

    Raise `RepositoryError` if Triton cannot read a file after the change, and `BadInput` if a new
    value exceeds the engine's limits or contradicts another value.
    """
    texts = {each.model: repository.texts[each.model] for each in changes}
    for each in changes:
        if not is_unfilled(each.place):
            texts[each.model] = change(texts[each.model], each.place, each.new)
    for model, text in texts.items():
        texts[model] = fill(text, {each.parameter: each.new for each in changes})
        if all(each.is_quoted for each in list_unfilled(texts[model])):
            try:
                parse_config(texts[model])
            except PbtxtError as error:
                raise unreadable(repository, model, error) from error
    before = {(each.path, each.what) for each in list_contradictions(repository)}
    for finding in list_contradictions(replace(repository, texts={**repository.texts, **texts})):
        if (finding.path, finding.what) not in before:
            raise BadInput(
                f"The settings of {repository.name} cannot be changed.",
                why=f"after the change, {finding.what}",
                next_step=finding.next_step,
            )
    return texts


def write_changes(
    repository: OpenRepository, texts: Mapping[str, str], requested: Mapping[str, str]
) -> None:
    """Write `texts` and record the requested settings in the manifest.

    If an error occurs, no file is changed. Raise `RepositoryError` if a file has changed since the
    repository was opened.
    """
    files = {Path(model, CONFIG): text for model, text in texts.items()}
    if repository.has_manifest:
        values = with_instance_count(check_parameters(requested, repository.kind), repository.kind)
        known = {**repository.manifest.get("set", {}), **values}
        manifest = {**repository.manifest, "set": known}
        files[Path(MANIFEST)] = json.dumps(manifest, indent=2) + "\n"
    if open_repository(repository.path) != repository:
        raise RepositoryError(
            f"{repository.path} has changed since this command read it.",
            why="the planned changes are based on the previous files",
            next_step="run the same command again",
        )
    replace_files(repository.path, files)


def _changes_of(repository: OpenRepository, parameter: Parameter, value: str) -> list[Change]:
    places = list(repository.places(parameter))
    found = {at: values[0] for at in places if (values := repository.values(*at))}
    if found:
        return [
            Change(parameter.name, *at, old, value) for at, old in found.items() if old != value
        ]
    variable = f"${{{parameter.name}}}"
    templates = [
        model
        for model in repository.texts
        if any(each.name == parameter.name for each in unfilled(repository, model))
    ]
    if templates:
        return [Change(parameter.name, model, variable, variable, value) for model in templates]
    missing = [at for at in places if not at[1].endswith(".data_type")]
    if not missing or not _can_be_added(repository, parameter):
        raise BadInput(
            f"The {parameter.name} parameter cannot be set in {repository.path}.",
            why=f"no {CONFIG} in this repository has a field for the parameter",
            next_step="import the model again with --draft NAME"
            if parameter.is_of_draft_model
            else "omit the parameter",
        )
    if value == parameter.default:
        # Do not add a queue field for a default value, because the field would enable the dynamic
        # batcher, which can delay requests.
        missing = [at for at in missing if not at[1].startswith(_BATCHING)]
    changes = [Change(parameter.name, *at, None, value) for at in missing]
    # Set `allow_timeout_override`, because Triton would otherwise ignore request timeouts.
    return changes + [
        Change("allow_timeout_override", model, _OVERRIDE, None, "true")
        for model, place in missing
        if place == _TIMEOUT and not repository.values(model, _OVERRIDE)
    ]


def _can_be_added(repository: OpenRepository, parameter: Parameter) -> bool:
    """Return whether the parameter may be added to a `config.pbtxt` that does not contain it.

    In the gpt layout, parameters cannot be added, because the files already have all fields that
    the models read.
    """
    return repository.layout != "gpt" and _is_of_layout(repository.layout, parameter)


def _is_of_layout(layout: str, parameter: Parameter) -> bool:
    """Return whether models in the layout have fields for the parameter."""
    return not parameter.fills or any(
        "/" not in role or role.startswith(f"{layout}/") for role in parameter.fills
    )


def is_set(value: str | None) -> TypeGuard[str]:
    """Return whether the value exists, is not empty and is not an unfilled variable."""
    return bool(value and not is_unfilled(value))


def _origin(repository: OpenRepository, parameter: Parameter, values: Mapping[str, str]) -> str:
    filled = set(filter(is_set, values.values()))
    if not filled:
        return "unset"
    name, manifest = parameter.name, repository.manifest
    if filled == {manifest.get("set", {}).get(name)}:
        return "set"
    if parameter.is_fact:
        return "engine" if manifest else "file"
    if filled != {manifest.get("parameters", {}).get(name)}:
        return "file"
    if name in manifest.get("asked", {}):
        return "import"
    return "engine" if name in _FROM_ENGINE else "default"
