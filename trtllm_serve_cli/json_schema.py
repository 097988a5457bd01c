"""Render a dataclass of options as a JSON schema that editors use to validate `tllm.yaml`.

Like `yaml_schema`, the schema accepts numbers in text fields, and a single value instead of a list
with one item.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trtllm_serve_cli.option_fields import OptionField, option_fields

_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": ["string", "number"]},
    Path: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_TABLE = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


def render_schema(options: type, title: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) for the dataclass `options`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **_object(options),
    }


def _object(options: type) -> dict[str, Any]:
    fields = option_fields(options)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: _property(each) for each in fields},
        "additionalProperties": False,
    }
    if required := [each.name for each in fields if each.is_required]:
        schema["required"] = required
    if doc := (options.__doc__ or "").strip():
        schema["description"] = " ".join(doc.partition("\n\n")[0].split())
    return schema


def _property(field: OptionField) -> dict[str, Any]:
    if part := field.part_of:
        return _object(part.options)
    if isinstance(field.kind, type) and dataclasses.is_dataclass(field.kind):
        return _object(field.kind)
    schema = _value(field)
    if field.is_optional:
        schema = {"anyOf": [schema, {"type": "null"}]}
    if field.option.help:
        schema["description"] = field.option.help
    if field.default not in (dataclasses.MISSING, None, (), {}):
        schema["default"] = field.default
    return schema


def _value(field: OptionField) -> dict[str, Any]:
    if field.choices:
        return {"enum": list(field.choices)}
    if field.is_list:
        text = _TYPES[str]
        return {"anyOf": [{"type": "array", "items": text}, text]}
    if field.is_table:
        return dict(_TABLE)
    schema = dict(_TYPES[field.kind])
    if within := field.within:
        schema["minimum"] = within.at_least
        if within.at_most is not None:
            schema["maximum"] = within.at_most
    return schema
