"""Find errors in a repository's files without starting a server."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from typing import Any

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.contract import (
    STOP,
    Contract,
    Tensor,
    load_contracts,
    load_text_contract,
)
from trtllm_serve_cli.repository.model.findings import Checked, Finding, type_name
from trtllm_serve_cli.repository.model.instances import check_instances
from trtllm_serve_cli.repository.model.model_repository import (
    CONFIG,
    UPSTREAM_LAYOUTS,
    OpenRepository,
    unfilled,
)
from trtllm_serve_cli.repository.model.parameters import (
    Parameter,
    check_value,
    describe_accepted,
    load_parameters,
    may_be_empty,
)
from trtllm_serve_cli.repository.model.runtime_copy import RUNTIME_PACKAGE, has_other_runtime
from trtllm_serve_cli.repository.model.store import MANIFEST, command_to_import_again
from trtllm_serve_cli.repository.pbtxt import (
    PbtxtError,
    fill,
    find_values,
    parse_config,
    write_value,
)
from trtllm_serve_cli.repository.validation.draft_checks import check_draft_model
from trtllm_serve_cli.repository.validation.engine_limits import (
    check_engine_and_paths,
    find_trtllm_version,
    list_beyond_engine,
)
from trtllm_serve_cli.repository.validation.ensemble_checks import check_batches, check_ensembles

# Maps parameter types to placeholders for parameters without a default. The placeholders replace
# unquoted variables, so that protobuf can parse the file and tllm can check the other values.
_PLACEHOLDERS = {"bool": "true", "int": "1", "float": "1"}


def validate_repository(repository: OpenRepository) -> list[Finding]:
    """Return all findings, with errors before warnings, sorted by file and line."""
    configs: dict[str, Any] = {}
    checked = Checked(repository, configs)
    findings: list[Finding] = []
    for model in repository.texts:
        findings += _check_unfilled(checked, model)
        try:
            configs[model] = parse_config(_with_placeholders(repository, model))
        except PbtxtError as error:
            path = repository.path / model / CONFIG
            findings.append(
                Finding("error", path, error.line, f"Triton cannot read the file: {error.what}",
                        "correct this line")
            )  # fmt: skip
    for model in configs:
        findings += _check_folder(checked, model)
        findings += _check_tensors(checked, model)
        findings += _check_parameters(checked, model)
    findings += _check_models(checked)
    findings += check_ensembles(checked)
    findings += check_engine_and_paths(checked)
    findings += check_draft_model(checked)
    findings += _check_runtime(checked)
    return sorted(
        findings, key=lambda each: (each.severity, str(each.path), each.line or 0, each.what)
    )


def check_loadable(repository: OpenRepository) -> None:
    """Raise `RepositoryError` if Triton's C++ backend cannot load the repository's models.

    Loading fails if template variables are unfilled, or if values exceed the engine's limits or
    contradict each other.
    """
    checked = Checked(repository, {})
    findings = [each for model in repository.texts for each in _check_unfilled(checked, model)]
    findings += list_contradictions(repository)
    errors = [each for each in findings if each.severity == "error"]
    if not errors:
        return
    first = errors[0]
    place = f"{first.path.relative_to(repository.path)}" + (f":{first.line}" if first.line else "")
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    raise RepositoryError(
        f"The models in {repository.path} cannot be loaded.",
        why=f"{place}: {first.what}{more}",
        next_step=f"{first.next_step}, or run `tllm validate {repository.target}` to list "
        "all errors",
    )


def list_contradictions(repository: OpenRepository) -> list[Finding]:
    """Return errors about values that exceed the engine's limits or contradict each other.

    Missing folders, models and values are not reported, because the user may add them later.
    """
    checked = Checked(repository, {})
    found = [*list_beyond_engine(repository), *check_draft_model(checked)]
    for model, text in repository.texts.items():
        try:
            checked.configs[model] = parse_config(text)
        except PbtxtError:
            continue
        found += check_batches(checked, model)
        if repository.role(model) == "tensorrt_llm":
            found += check_instances(checked, model)
    return [each for each in found if each.severity == "error"]


def _with_placeholders(repository: OpenRepository, model: str) -> str:
    table = load_parameters()
    values = {}
    for each in unfilled(repository, model):
        parameter = table.get(each.name)
        if not each.is_quoted:
            values[each.name] = _placeholder(parameter) if parameter else "1"
    return fill(repository.texts[model], values)


def _placeholder(parameter: Parameter) -> str:
    """Return a placeholder that is a valid literal for the parameter's field."""
    value = (
        parameter.default or _PLACEHOLDERS.get(parameter.type) or next(iter(parameter.choices), "")
    )
    places = [place for places in parameter.fills.values() for place in places]
    return write_value(places[0], value) if places else value


def _check_unfilled(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield findings about template variables that are not filled in.

    Triton cannot read a file with unquoted variables. A quoted variable for an optional parameter
    is not reported, because it has the same effect as a missing value.
    """
    repository = checked.repository
    seen = set()
    for each in unfilled(repository, model):
        parameter = load_parameters().get(each.name)
        is_optional = parameter is not None and parameter.unset is not None
        if (each.is_quoted and is_optional) or each.name in seen:
            continue
        seen.add(each.name)
        next_step = (
            f"run `{checked.set_command} {describe_accepted(parameter).split(' ')[0]}`"
            if parameter and not parameter.is_fact
            else f"replace ${{{each.name}}} with a value"
        )
        path = repository.path / model / CONFIG
        yield Finding(
            "error" if parameter or not each.is_quoted else "warning",
            path, each.line, f"${{{each.name}}} is not filled in", next_step,
        )  # fmt: skip


def _check_folder(checked: Checked, model: str) -> Iterator[Finding]:
    config, folder = checked.configs[model], checked.repository.path / model
    if config.name and config.name != model:
        yield checked.finding(
            "error", model, f"the model is named {config.name}, but its folder is named {model}",
            "use the same name for the model and its folder", place="name",
        )  # fmt: skip
    versions = sorted(
        (each for each in folder.iterdir() if each.name.isdecimal() and each.is_dir()),
        key=lambda each: int(each.name),
    )
    if not versions:
        command = f"mkdir {shlex.quote(f'{folder}/1')}"
        yield Finding("error", folder, None, "the model has no version folder", f"run `{command}`")
        return
    if config.backend == "python":
        code = versions[-1] / (config.default_model_filename or "model.py")
        if not code.is_file():
            yield Finding("error", code, None, "the file is missing", _restore(checked))
        elif checked.repository.has_manifest and not (code.parent / RUNTIME_PACKAGE).is_dir():
            yield Finding(
                "error",
                code.parent / RUNTIME_PACKAGE,
                None,
                "the folder is missing",
                f"run `tllm update {checked.repository.target}`",
            )


def _check_models(checked: Checked) -> Iterator[Finding]:
    repository = checked.repository
    for model in repository.manifest.get("models", ()):
        if model not in repository.texts:
            yield Finding(
                "error",
                repository.path / model / CONFIG,
                None,
                "the file is missing",
                _restore(checked),
            )


def _check_runtime(checked: Checked) -> Iterator[Finding]:
    repository = checked.repository
    if has_other_runtime(repository):
        yield Finding(
            "warning",
            repository.path / MANIFEST,
            None,
            "the models use the runtime of another version of tllm",
            f"run `tllm update {repository.target}`",
        )


def _restore(checked: Checked) -> str:
    if checked.repository.has_manifest:
        return f"run `{command_to_import_again(checked.repository.path, checked.repository.name)}`"
    return "copy the file from the original repository"


def _check_tensors(checked: Checked, model: str) -> Iterator[Finding]:
    contract = _find_contract(checked, model)
    # Skip layouts with a single model, because the model's tensors differ from the inflight
    # layout's tensors. In a copy of NVIDIA's llmapi repository, the model is named `tensorrt_llm`.
    is_other = checked.repository.layout not in UPSTREAM_LAYOUTS or (
        model == "tensorrt_llm"
        and any(each.name == "text_input" for each in checked.configs[model].input)
    )
    if contract is None or is_other:
        return
    for side, tensors in (("input", contract.inputs), ("output", contract.outputs)):
        yield from _check_side(checked, model, side, {each.name: each for each in tensors})


def _find_contract(checked: Checked, model: str) -> Contract | None:
    """Return the tensors that clients expect from `model`, or None if they are unknown."""
    version = find_trtllm_version(checked.repository)
    contracts = load_contracts(version)
    role = (checked.repository.roles(model) or ("",))[-1]
    if checked.repository.layout == "gpt":
        return contracts.get("gpt/ensemble" if role == "tensorrt_llm_bls" else f"gpt/{role}")
    if checked.repository.has_manifest and role == "tensorrt_llm_bls":
        return load_text_contract("ensemble" if model == "ensemble" else role, version)
    return contracts.get(model) or contracts.get(role)


def _check_side(
    checked: Checked, model: str, side: str, expected: dict[str, Tensor]
) -> Iterator[Finding]:
    """Yield findings about a model's inputs or outputs.

    Missing tensors and unexpected types are errors in a repository that tllm rendered. In a copy of
    NVIDIA's repository, they are only warnings, because the copy may be for an older TensorRT-LLM
    version. Unexpected tensors are always warnings.
    """
    has_manifest = checked.repository.has_manifest
    actual = {each.name: each for each in getattr(checked.configs[model], side)}
    for name, tensor in actual.items():
        known, actual_type = expected.get(name), type_name(tensor.data_type)
        place = f"{side}.{name}.data_type"
        if (
            known
            and actual_type != known.type
            and actual_type not in _selectable_types(model, place, checked)
        ):
            yield checked.finding(
                "error" if has_manifest else "warning", model,
                f"the {name} {side} is {actual_type}, but clients expect "
                f"{known.type}",
                f"set data_type: {known.type}", place=place,
            )  # fmt: skip
    # Repositories that earlier versions of tllm rendered lack `STOP`, but serve all other requests.
    if missing := [name for name in expected if name not in actual and expected[name] != STOP]:
        yield checked.finding(
            "error" if has_manifest else "warning", model,
            f"the model lacks {_count(missing, side)} that clients may use: {', '.join(missing)}",
            _restore(checked) if has_manifest
            else "ignore this warning if the repository is for an older version of TensorRT-LLM",
        )  # fmt: skip
    if extra := [name for name in actual if name not in expected]:
        yield checked.finding(
            "warning", model,
            f"the model has {_count(extra, side)} that clients do not expect: {', '.join(extra)}",
        )  # fmt: skip


def _selectable_types(model: str, place: str, checked: Checked) -> set[str]:
    """Return the types that parameters can select for the tensor whose type is at `place`."""
    chosen = [each.choices for each in load_parameters().values()
              if place in checked.repository.places_in(each, model)]  # fmt: skip
    return {choice for choices in chosen for choice in choices}


def _count(names: list[str], side: str) -> str:
    return f"{len(names)} {side}{'' if len(names) == 1 else 's'}"


def _check_parameters(checked: Checked, model: str) -> Iterator[Finding]:
    repository = checked.repository
    roles = repository.roles(model)
    if not roles:
        return
    known: set[str] = set()
    for parameter in load_parameters().values():
        for place in repository.places_in(parameter, model):
            known.add(place)
            for value in find_values(repository.texts[model], place):
                yield from _check_parameter_value(checked, model, parameter, place, value)
    for key in checked.configs[model].parameters:
        place = f"parameters.{key}"
        if place not in known:
            near = difflib.get_close_matches(key, [each[11:] for each in known], n=1)
            yield checked.finding(
                "warning", model, f"{key} is not a known parameter",
                f"use {near[0]} instead" if near else "", place=place,
            )  # fmt: skip


def _check_parameter_value(
    checked: Checked, model: str, parameter: Parameter, place: str, value: str
) -> Iterator[Finding]:
    kind = checked.repository.kind
    if "${" in value or (not value and may_be_empty(parameter, kind)):
        return
    is_entry = place.startswith("parameters.")
    if not parameter.applies_to(kind) and is_entry:
        # Do not warn about default values or values written at import. `tllm import` writes some
        # parameters even for engine kinds that do not use them.
        at_import = checked.repository.manifest.get("parameters", {}).get(parameter.name)
        if value not in (parameter.default, at_import):
            yield checked.finding(
                "warning", model, f"{parameter.name} has no effect on the {kind} engine kind",
                "remove the parameter", place=place,
            )  # fmt: skip
        return
    # Report only a warning if the C++ backend cannot parse a value, because the backend falls back
    # to the parameter's default.
    is_upstreams = find_kind(kind).runs_in_triton_backend
    is_harmless = is_entry and is_upstreams and parameter.unset is not None
    # Check each batch size separately, because `preferred_batch_size` may be a list.
    for each in value.split(",") if place.endswith("preferred_batch_size") else (value,):
        try:
            check_value(parameter, each.strip(), kind)
        except BadInput as error:
            yield checked.finding(
                "warning" if is_harmless else "error", model,
                f"{parameter.name} has the invalid value {each[:40]!r}"
                + (f", so Triton uses the default, {parameter.unset}" if is_harmless else ""),
                error.next_step, place=place,
            )  # fmt: skip
