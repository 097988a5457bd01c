"""Load the parameters in `parameters.yaml` and check parameter values."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from trtllm_serve_cli.choices import LARGEST
from trtllm_serve_cli.engine_kinds.registry import find_kind, kind_names
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import expand_user
from trtllm_serve_cli.repository.model.contract import Contract, Tensor, is_in_versions

ValueType = Literal[
    "bool",
    "int",
    "float",
    "choice",
    "path",
    "model",
    "text",
    "int_list",
    "int_groups",
    "tree",
    "json",
]
# Prefix of a field path in `fills` that refers to the `parameters` map of a `config.pbtxt`.
_ENTRY = "parameters."
# Parameters of type "path" that also accept a name. For `tokenizer_dir`, the name is a Hugging Face
# repository. For `engine_python`, the name is a program on PATH.
_MAY_BE_NAMES = ("tokenizer_dir", "engine_python")
_FLAGS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_PATTERNS: dict[ValueType, tuple[str, str]] = {
    "model": (r"[A-Za-z0-9][A-Za-z0-9._-]*", "a model name"),
    "int_list": (r"[0-9]{1,9}(,[0-9]{1,9})*", "whole numbers, for example 4096 or 4096,1024"),
    "int_groups": (
        r"[0-9]{1,9}(,[0-9]{1,9})*(;[0-9]{1,9}(,[0-9]{1,9})*)*",
        "whole numbers, for example 0,1 for one instance or 0,1;2,3 for two instances",
    ),
    "tree": (r"\{[0-9, ]*\}( *, *\{[0-9, ]*\})*", "a tree, for example {0, 0}, {0, 1}"),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter from `parameters.yaml`. A comment in the YAML file describes the fields."""

    name: str
    type: ValueType
    fills: Mapping[str, tuple[str, ...]]
    explanation: str
    default: str | None = None
    unset: str | None = None
    at_least: int = 0
    at_most: int = LARGEST
    choices: tuple[str, ...] = ()
    of_engine: bool = False
    of_upstream: bool = False
    since: str = "0.5"
    until: str | None = None
    is_fact: bool = False

    @property
    def is_entry(self) -> bool:
        """True if the parameter sets only entries of `parameters` in `config.pbtxt` files."""
        return all(p.startswith(_ENTRY) for places in self.fills.values() for p in places)

    @property
    def is_of_draft_model(self) -> bool:
        """True if only the `tensorrt_llm_draft` model has the parameter."""
        return self.fills.keys() == {DRAFT_MODEL}

    def applies_to(self, kind: str) -> bool:
        """Return whether the parameter has an effect on the engine kind."""
        return not self.of_engine or self.name in find_kind(kind).serving.parameters

    def places(self, role: str | None, layout: str = "inflight") -> tuple[str, ...]:
        """Return the `config.pbtxt` fields that the parameter sets in the model with this role."""
        in_layout = self.fills.get(f"{layout}/{role}")
        return in_layout if in_layout is not None else self.fills.get(role or "", ())

    def is_in(self, version: str) -> bool:
        """Return whether NVIDIA's models have the parameter in TensorRT-LLM `version`."""
        return is_in_versions(version, self.since, self.until)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine kinds on which the parameter has an effect, sorted by name."""
        return tuple(sorted(kind for kind in kind_names() if self.applies_to(kind)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The sorted keys that this parameter sets in `parameters` of `config.pbtxt` files."""
        places = {place for places in self.fills.values() for place in places}
        return tuple(sorted(p.removeprefix(_ENTRY) for p in places if p.startswith(_ENTRY)))


@cache
def load_parameters() -> dict[str, Parameter]:
    """Return the parameters in `parameters.yaml`, keyed by name."""
    import yaml

    table = resources.files("trtllm_serve_cli.repository.model").joinpath("parameters.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: dict[str, Any] = yaml.load(table.read_text(encoding="utf-8"), Loader=loader)
    return {name: _parameter(name, row) for name, row in rows.items()}


def defaults_for(kind: str) -> dict[str, str]:
    """Return the defaults that an import writes for the engine kind, keyed by parameter name."""
    return {
        name: each.default
        for name, each in load_parameters().items()
        if each.default is not None and each.applies_to(kind)
    }


def check_parameter(name: str, value: str) -> None:
    """Raise `BadInput` if the parameter is unknown, or if it does not accept the value.

    An empty value is always accepted.
    """
    table = load_parameters()
    if name not in table:
        settable = {each.name: each for each in table.values() if not each.is_fact}
        raise _unknown_parameter(name, settable, "run `tllm show` to list a model's parameters")
    if value:
        _check_type(table[name], value)


def check_parameters(values: Mapping[str, str], kind: str, version: str = "") -> dict[str, str]:
    """Return `values` in canonical form.

    `version` is the TensorRT-LLM version that reads the values, or empty if unknown. Raise
    `BadInput` if a name or a value is not valid for the engine kind, or if a parameter has no
    effect in this version.
    """
    for name in values:
        _check_version(find_parameter(name, kind), kind, version)
    return {
        name: check_value(find_parameter(name, kind), value, kind) for name, value in values.items()
    }


def _check_version(parameter: Parameter, kind: str, version: str) -> None:
    """Raise `BadInput` if a Triton backend of TensorRT-LLM `version` does not read the parameter.

    An unknown version is not checked. Parameters that set fields outside `parameters` are not
    checked, because Triton reads these fields in every version.
    """
    is_read_by_backend = find_kind(kind).runs_in_triton_backend and parameter.is_entry
    if not version or not is_read_by_backend or parameter.is_in(version):
        return
    why = f"only TensorRT-LLM {parameter.since} and later versions support the parameter"
    if parameter.until:
        why = f"only TensorRT-LLM {parameter.since} to {parameter.until} support the parameter"
    raise BadInput(
        f"The {parameter.name} parameter has no effect with TensorRT-LLM {version}.",
        why=why,
        next_step="omit the parameter",
    )


def resolve_paths(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return `values` with absolute paths. Relative paths are resolved against `folder`.

    A server requires absolute paths, because it runs in a different working directory. If a
    parameter accepts either a name or a path, its value is resolved only if the path exists or the
    value starts with "." or "~".
    """
    table = load_parameters()
    return {
        name: _absolute(name, value, folder)
        if value and name in table and table[name].type == "path"
        else value
        for name, value in values.items()
    }


def _absolute(name: str, value: str, folder: Path) -> str:
    path = folder / expand_user(Path(value))
    is_path = name not in _MAY_BE_NAMES or value.startswith((".", "~")) or path.exists()
    return str(path) if is_path else value


def check_required_folders(values: Mapping[str, str]) -> None:
    """Raise `BadInput` if the engine's or the tokenizer's folder is missing on this machine.

    Relative paths are not checked.
    """
    for what in ("engine", "tokenizer"):
        folder = values.get(f"{what}_dir", "")
        if Path(folder).is_absolute() and not Path(folder).exists():
            raise BadInput(
                f"The {what} folder {folder} does not exist.",
                why=f"the server cannot load its models without the {what}",
                next_step=f"set {what}_dir to an existing folder; if the folder is on another "
                "machine, run the command with --repo DIR instead of the model name",
            )


def type_tensors(
    role: str, contract: Contract, values: Mapping[str, str], layout: str = "inflight"
) -> Contract:
    """Return a copy of `contract` with the tensor types that the parameters in `values` set.

    `role` is the model's role in the layout.
    """
    types = {
        place: values[each.name]
        for each in load_parameters().values()
        for place in each.places(role, layout)
        if place.endswith(".data_type") and each.name in values
    }

    def typed(side: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            replace(each, type=types.get(f"{side}.{each.name}.data_type", each.type))
            for each in tensors
        )

    return Contract(typed("input", contract.inputs), typed("output", contract.outputs))


def refuse_unused(names: Iterable[str], used: Container[str], layout: str) -> None:
    """Raise `BadInput` if one of `names` is not in `used`.

    `used` contains the names of the parameters that have an effect in the layout.
    """
    for name in names:
        if name not in used:
            raise BadInput(
                f"The {name} parameter has no effect in the {layout} layout.",
                why="no model in this layout has a field for the parameter",
                next_step="omit the parameter",
            )


def refuse_of_upstream(names: Iterable[str], kind: str) -> None:
    """Raise `BadInput` if a parameter in `names` has an effect only in NVIDIA's models.

    Parameters that have no effect on the engine kind are not rejected.
    """
    for name in names:
        parameter = load_parameters().get(name)
        if parameter is not None and parameter.of_upstream and parameter.applies_to(kind):
            raise BadInput(
                f"The {name} parameter has no effect in a repository created by tllm.",
                why="only the Python models in NVIDIA's repository read the parameter, and tllm "
                "replaces these models",
                next_step="omit the parameter, or set it in a copy of NVIDIA's repository with "
                f"`tllm set --repo DIR {name}=VALUE`",
            )


def list_unused(names: Iterable[str], kind: str) -> list[Parameter]:
    """Return the parameters in `names` that have no effect on the engine kind.

    `tllm import` writes these parameters instead of rejecting them, because scripts for NVIDIA's
    repository set all parameters.
    """
    return [each for name in names if not (each := load_parameters()[name]).applies_to(kind)]


def find_parameter(name: str, kind: str) -> Parameter:
    """Return the parameter named `name`. Raise `BadInput` if it cannot be set for the engine kind.

    A parameter that has no effect on the kind is allowed if it sets only entries of `parameters`,
    because Triton accepts entries with any name.
    """
    table = load_parameters()
    choosable = {
        each.name: each for each in table.values() if each.applies_to(kind) and not each.is_fact
    }
    if name in choosable:
        return choosable[name]
    if name in table and not table[name].is_fact and table[name].is_entry:
        return table[name]
    if name not in table:
        names = ", ".join(sorted(choosable))
        others = f"choose a parameter of the {kind} engine kind: {names}"
        raise _unknown_parameter(name, choosable, others)
    if table[name].is_fact:
        raise BadInput(
            f"The {name} parameter cannot be set.",
            why="the engine or the layout determines the parameter's value",
            next_step="import the model again if the engine has changed",
        )
    raise BadInput(
        f"The {name} parameter has no effect on the {kind} engine kind.",
        why=f"the parameter applies only to {' and '.join(table[name].engines)}",
        next_step="omit the parameter",
    )


def _unknown_parameter(name: str, known: Mapping[str, Parameter], others: str) -> BadInput:
    """Return the error for an unknown parameter name.

    The next step suggests similar names in `known`. If no name is similar, `others` is the next
    step.
    """
    renamed = [each.name for each in known.values() if name in each.keys]
    near = renamed or difflib.get_close_matches(name, known, n=3)
    return BadInput(
        f"The {name!r} parameter does not exist.",
        why="most parameter names match the variables in NVIDIA's templates",
        next_step=f"use {' or '.join(near)} instead" if near else others,
    )


def check_value(parameter: Parameter, value: str, kind: str) -> str:
    """Return the canonical form of `value`. Raise `BadInput` if the parameter rejects the value.

    An empty value selects the engine's default. It is valid only if `may_be_empty` returns true.
    """
    if not value and may_be_empty(parameter, kind):
        return value
    return _check_type(parameter, value)


def _check_type(parameter: Parameter, value: str) -> str:
    normalized = _normalize(parameter, value)
    if normalized is None:
        raise BadInput(
            f"{value[:20]!r} is not a valid value for the {parameter.name} parameter.",
            next_step=f"set {describe_accepted(parameter)}",
        )
    return normalized


def may_be_empty(parameter: Parameter, kind: str) -> bool:
    """Return whether the parameter's value may be empty for the engine kind."""
    return parameter.unset is not None and (
        parameter.default == "" or parameter.is_fact or find_kind(kind).serving.empty_is_default
    )


def describe_accepted(parameter: Parameter) -> str:
    """Return a description of the accepted values, for example `name=true or name=false`."""
    name, low, high = parameter.name, parameter.at_least, parameter.at_most
    match parameter.type:
        case "bool":
            return f"{name}=true or {name}=false"
        case "int":
            return f"{name}=N with a whole number N from {low} to {high}"
        case "float":
            return f"{name}=X with a number X from {low} to {high}"
        case "choice":
            return " or ".join(f"{name}={choice}" for choice in parameter.choices)
        case "path" | "text":
            return f"{name}={parameter.type.upper()}"
        case "json":
            return f"{name}={{…}} with a JSON object"
        case _:
            return f"{name}=… with {_PATTERNS[parameter.type][1]}"


def _normalize(parameter: Parameter, value: str) -> str | None:
    """Return the canonical form of `value`, or None if the value is not valid."""
    match parameter.type:
        case "bool":
            return _FLAGS.get(value.lower())
        case "int":
            if not re.fullmatch("[0-9]{1,19}", value):
                return None
            return value if parameter.at_least <= int(value) <= parameter.at_most else None
        case "float":
            number = _number(value)
            return value if parameter.at_least <= number <= parameter.at_most else None
        case "choice":
            return value if value in parameter.choices else None
        case "path" | "text":
            return value or None
        case "json":
            return value if _is_json_object(value) else None
        case _:
            return value if re.fullmatch(_PATTERNS[parameter.type][0], value) else None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _parameter(name: str, row: dict[str, Any]) -> Parameter:
    fills = {model: tuple(places) for model, places in row["fills"].items()}
    choices = tuple(row.get("choices", ()))
    return Parameter(**(row | {"choices": choices, "name": name, "fills": fills}))
