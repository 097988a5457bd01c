"""The rules of Pydantic that TensorRT-LLM's argument classes use, without Pydantic.

Upstream's classes derive from `StrictBaseModel` (tensorrt_llm/llmapi/llm_args.py and
tensorrt_llm/llmapi/utils.py, 1.0 to 1.3): unknown fields are errors, nested mappings become
instances of the field's class, and a union of classes is selected by the field `decoding_type`.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


class ValidationError(ValueError):
    """The error that Pydantic raises, with the location and the message of each problem."""

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__(f"{len(problems)} validation errors\n    For further information visit …")
        self._problems = problems

    def errors(self) -> list[dict[str, Any]]:
        return self._problems


@dataclass
class AliasChoices:
    choices: list[str]


@dataclass
class FieldInfo:
    """A field. `init` is false for fields that only TensorRT-LLM itself sets."""

    annotation: Any = Any
    default: Any = None
    validation_alias: AliasChoices | None = None
    json_schema_extra: dict[str, Any] | None = None
    deprecated: bool | None = None
    init: bool | None = None


class StrictModel:
    """A class with `model_fields`. Subclasses inherit the fields of their bases."""

    model_fields: ClassVar[dict[str, FieldInfo]] = {}

    def __init__(self, **data: Any) -> None:
        names = {alias: name for name, field in self.model_fields.items()
                 for alias in _aliases(name, field)}  # fmt: skip
        problems = [_problem((name,), "Extra inputs are not permitted")
                    for name in data if name not in names]  # fmt: skip
        for name, value in data.items():
            if name in names:
                field = self.model_fields[names[name]]
                setattr(self, names[name], _convert(value, field.annotation, names[name], problems))
        if problems:
            raise ValidationError(problems)
        self.fields_set = {names[name] for name in data}


def define(
    name: str, fields: dict[str, Any], base: type = StrictModel, **attributes: Any
) -> type[Any]:
    """Return a class with these fields. A value that is not a `FieldInfo` is the annotation."""
    own = {key: each if isinstance(each, FieldInfo) else FieldInfo(each)
           for key, each in fields.items()}  # fmt: skip
    inherited: dict[str, FieldInfo] = getattr(base, "model_fields", {})
    return type(name, (base,), {"model_fields": {**inherited, **own}, **attributes})


def _aliases(name: str, field: FieldInfo) -> list[str]:
    return field.validation_alias.choices if field.validation_alias else [name]


def _convert(value: Any, annotation: Any, name: str, problems: list[dict[str, Any]]) -> Any:
    """Return a mapping as an instance of the annotation's class, and other values unchanged."""
    classes = [each for each in _flatten(annotation) if hasattr(each, "model_fields")]
    if not isinstance(value, dict) or not classes:
        return value
    if len(classes) > 1:
        tag = value.get("decoding_type")
        tags = {_tag(each): each for each in classes}
        if tag not in tags:
            known = ", ".join(repr(each) for each in tags)
            problems.append(
                _problem(
                    (name,),
                    f"Input tag '{tag}' found using 'decoding_type' does not match any of the "
                    f"expected tags: {known}",
                )
            )
            return value
        classes = [tags[tag]]
    try:
        return classes[0](**value)
    except ValidationError as error:
        problems += [_problem((name, *each["loc"]), each["msg"]) for each in error.errors()]
        return value


def _tag(cls: type[Any]) -> Any:
    (tag,) = typing.get_args(cls.model_fields["decoding_type"].annotation) or ("",)
    return tag


def _flatten(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is Literal:
        return []
    return [annotation, *(each for part in typing.get_args(annotation) for each in _flatten(part))]


def _problem(location: tuple[Any, ...], message: str) -> dict[str, Any]:
    return {"loc": location, "msg": message}
