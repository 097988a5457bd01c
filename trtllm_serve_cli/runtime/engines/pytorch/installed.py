"""Adapt `LLM` arguments to the classes of the installed TensorRT-LLM version.

Argument names and valid `decoding_type` values differ between releases and release candidates of
TensorRT-LLM. This module derives both from the installed Pydantic classes, not from the version. It
does not import `tensorrt_llm`. The known differences are from tensorrt_llm/llmapi/llm_args.py in
NVIDIA/TensorRT-LLM (1.0 to later release candidates of 1.3).
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine_arguments import Arguments
from .arguments import LLM_ARGUMENTS

# Arguments that some versions lack, with the value that these versions always use. With these
# versions, a model that sets another value fails to load.
_ALWAYS: Mapping[str, Any] = {"backend": "pytorch", "kv_cache_config.onboard_blocks": True}
# Arguments that have no effect in versions that mark them as deprecated.
_DEPRECATED = ("kv_cache_config.sink_token_length", "speculative_config.allow_advanced_sampling")
# The names of the argument that selects the sampler: a flag in version 1.0 and a type in later
# versions.
_SAMPLER_FLAG, _SAMPLER_TYPE = "enable_trtllm_sampler", "sampler_type"
OLD_SAMPLER = "TRTLLMSampler"
# Maps fields of speculative decoding classes to their names in other versions.
_RENAMED = {
    "speculative_model": "speculative_model_dir",
    "speculative_model_dir": "speculative_model",
    "num_nextn_predict_layers": "max_draft_len",
}
# The speculative decoding types that the PyTorch backend treats as Eagle 3. `eagle3` is preferred,
# because some versions of 1.3 log a warning for `eagle`.
_EAGLE = ("eagle3", "eagle")
_DECODING_SUFFIX = "DecodingConfig"
_PARAMETERS = {argument: parameter for parameter, (argument, _) in LLM_ARGUMENTS.rows.items()}


@dataclass(frozen=True, slots=True)
class AdaptedArguments:
    """Arguments that the installed `LLM` accepts.

    - `values`: the arguments except speculative_config.
    - `decoding`: the speculative decoding class and its arguments, or None if speculative decoding
      is disabled.
    - `ignored`: log messages about arguments that are omitted or have no effect.
    """

    values: Arguments
    decoding: tuple[type, Arguments] | None
    ignored: tuple[str, ...]


class _Report:
    """A report of the arguments that the installed version ignores or does not support."""

    def __init__(self, version: str) -> None:
        self._package = f"TensorRT-LLM {version}".rstrip()
        self.ignored: list[str] = []
        self._unknown: list[str] = []

    def add_missing(self, path: str, value: Any) -> None:
        """Record an argument that the installed classes lack."""
        if path in (_SAMPLER_FLAG, _SAMPLER_TYPE):
            why = "has a single sampler"
        elif path in _ALWAYS and value == _ALWAYS[path]:
            why = f"always uses the value {json.dumps(value)}"
        else:
            self._unknown.append(_show(path))
            return
        self.ignored.append(f"{_show(path)} is omitted, because {self._package} {why}")

    def add_without_effect(self, path: str) -> None:
        self.ignored.append(f"{_show(path)} has no effect in {self._package}")

    def check(self) -> None:
        """Raise a `ValueError` that names the unsupported arguments, if any."""
        if self._unknown:
            raise ValueError(
                f"{self._package} does not support the arguments {', '.join(self._unknown)}; "
                "remove these arguments, or serve the model with a version that supports them"
            )


def adapt_arguments(arguments: Arguments, llm_args: type, version: str) -> AdaptedArguments:
    """Return the arguments for the installed version.

    `llm_args` is the installed `TorchLlmArgs` class, and `version` is used only in messages.
    Arguments that have another name in the installed classes are converted. Any other argument that
    the classes lack is omitted in these cases:

    - The installed version always uses the requested value.
    - The argument selects a sampler, and the installed version has a single sampler.
    - The argument is `allow_advanced_sampling`, and the speculative decoding class always supports
      sampling.

    In all other cases, raise a `ValueError` that names the arguments. Also raise `ValueError` if
    the installed version lacks the speculative decoding type.
    """
    report = _Report(version)
    fields = accepted_fields(llm_args)
    values: Arguments = {}
    decoding = None
    for name, value in _name_sampler(arguments, fields).items():
        if name not in fields:
            report.add_missing(name, value)
        elif name == "speculative_config" and isinstance(value, Mapping):
            decoding = _adapt_decoding(value, fields[name], report)
        elif isinstance(value, Mapping):
            values[name] = _adapt_group(name, value, _classes_of(fields[name]), report)
        else:
            values[name] = value
    report.check()
    return AdaptedArguments(values, decoding, tuple(report.ignored))


def accepted_fields(cls: type) -> dict[str, Any]:
    """Return the fields of a Pydantic class or dataclass.

    The keys are all names that callers may use for the fields, including aliases. Return an empty
    dictionary for any other class.
    """
    fields: Mapping[str, Any] = getattr(cls, "model_fields", None) or getattr(
        cls, "__dataclass_fields__", {}
    )
    names: dict[str, Any] = {}
    for name, field in fields.items():
        # Skip fields that only TensorRT-LLM itself sets; they are defined with `init=False`.
        if getattr(field, "init", None) is False:
            continue
        alias = getattr(field, "validation_alias", None)
        aliases = [name] if alias is None else getattr(alias, "choices", [alias])
        names |= dict.fromkeys((each for each in aliases if isinstance(each, str)), field)
    return names


def is_deprecated(field: Any) -> bool:
    """Return whether TensorRT-LLM marks a field as deprecated."""
    extra = getattr(field, "json_schema_extra", None)
    status = extra.get("status") if isinstance(extra, dict) else None
    return bool(getattr(field, "deprecated", None)) or status == "deprecated"


def _name_sampler(arguments: Arguments, fields: Mapping[str, Any]) -> Arguments:
    """Return `arguments` with the sampler argument in the form that the installed version accepts.

    Convert the flag (version 1.0) to the type (later versions), or vice versa. If the installed
    version expects a type, omit a flag that is false.
    """
    if _SAMPLER_TYPE in arguments and _SAMPLER_TYPE not in fields and _SAMPLER_FLAG in fields:
        rest = {name: each for name, each in arguments.items() if name != _SAMPLER_TYPE}
        return {**rest, _SAMPLER_FLAG: arguments[_SAMPLER_TYPE] == OLD_SAMPLER}
    if _SAMPLER_FLAG in arguments and _SAMPLER_FLAG not in fields and _SAMPLER_TYPE in fields:
        rest = {name: each for name, each in arguments.items() if name != _SAMPLER_FLAG}
        return {**rest, _SAMPLER_TYPE: OLD_SAMPLER} if arguments[_SAMPLER_FLAG] else rest
    return arguments


def _adapt_group(
    path: str, group: Mapping[str, Any], classes: list[type], report: _Report
) -> Arguments:
    """Return the arguments in `group` that the classes accept and report all other arguments.

    Also report the accepted arguments that have no effect. If `classes` is empty, return all
    arguments, because the field accepts any mapping.
    """
    fields = {name: field for cls in classes for name, field in accepted_fields(cls).items()}
    values: Arguments = {}
    for name, value in group.items():
        if classes and name not in fields:
            report.add_missing(f"{path}.{name}", value)
            continue
        if f"{path}.{name}" in _DEPRECATED and is_deprecated(fields.get(name)):
            report.add_without_effect(f"{path}.{name}")
        values[name] = value
    return values


def _adapt_decoding(
    config: Mapping[str, Any], field: Any, report: _Report
) -> tuple[type, Arguments]:
    """Return the speculative decoding class and its arguments.

    Raise `ValueError` if no class matches the `decoding_type` in `config`.
    """
    cls = _find_decoding_class(str(config.get("decoding_type", "")), _classes_of(field))
    fields = accepted_fields(cls)
    options = {name: value for name, value in config.items() if name != "decoding_type"}
    for name in [each for each in options if each not in fields and _RENAMED.get(each) in fields]:
        options.setdefault(_RENAMED[name], options.pop(name))
    if "allow_advanced_sampling" not in fields and samples_always(cls):
        options.pop("allow_advanced_sampling", None)
    return cls, _adapt_group("speculative_config", options, [cls], report)


def _find_decoding_class(decoding_type: str, classes: list[type]) -> type:
    """Return the class whose own `decoding_type` or name matches the given `decoding_type`.

    Case and underscores are ignored. Raise `ValueError` if no class matches.
    """
    tag = _plain(decoding_type)
    for each in _EAGLE if tag in _EAGLE else (tag,):
        for cls in classes:
            if each in (_plain(decoding_tag(cls)), _plain(_stem(cls))):
                return cls
    known = ", ".join(sorted({decoding_tag(cls) or _stem(cls) for cls in classes}))
    raise ValueError(
        f"speculative_config.decoding_type is {decoding_type!r}, which is not supported; use "
        f"one of {known}"
    )


def decoding_tag(cls: type) -> str:
    """Return the `decoding_type` of a speculative decoding class.

    The type is a class variable up to version 1.2, and the default value of a field in later
    versions. Return an empty string if the class has neither.
    """
    field = getattr(cls, "model_fields", {}).get("decoding_type")
    return str(getattr(cls, "decoding_type", "") if field is None else field.default)


def samples_always(cls: type) -> bool:
    """Return whether a speculative decoding class always supports sampling.

    Older versions require the `allow_advanced_sampling` argument. In later release candidates of
    TensorRT-LLM 1.3, each request selects greedy decoding or sampling, so the argument is not
    needed.
    """
    fields = accepted_fields(cls)
    if "allow_advanced_sampling" in fields:
        return is_deprecated(fields["allow_advanced_sampling"])
    return "use_rejection_sampling" in fields


def _stem(cls: type) -> str:
    return cls.__name__.removesuffix(_DECODING_SUFFIX)


def _plain(tag: str) -> str:
    return tag.replace("_", "").lower()


def _classes_of(field: Any) -> list[type]:
    """Return the classes in a field's annotation that accept a mapping."""
    return list(dict.fromkeys(_classes_in(getattr(field, "annotation", None))))


def _classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and accepted_fields(annotation):
        yield annotation
    for each in typing.get_args(annotation):
        yield from _classes_in(each)


def _show(path: str) -> str:
    """Return an argument's path, followed by the name of the template parameter that sets it.

    Return only the path if no parameter sets the argument.
    """
    parameter = _PARAMETERS.get(path)
    return f"{path} (the {parameter} parameter)" if parameter else path
