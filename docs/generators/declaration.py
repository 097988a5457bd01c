"""Generate the JSON schema of a tllm.yaml, and the tables of keys in tllm-yaml.md."""

from __future__ import annotations

import json
from typing import Any

from generators.markdown import DOCS, fill_in, render_table
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.json_schema import render_schema
from trtllm_serve_cli.option_fields import OptionField, option_fields
from trtllm_serve_cli.repository.model.parameters import Parameter, load_parameters

DECLARATION_SCHEMA = DOCS / "reference" / "tllm.schema.json"
KEY_COLUMNS = ("key", "takes", "default", "what")
_TAKES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_PARAMETER_TYPES = {"bool": "boolean", "int": "integer", "float": "number"}


def render_declaration_schema() -> str:
    """Return the JSON schema of a tllm.yaml, with the parameters that `tllm show` explains."""
    schema = render_schema(Declaration, "tllm.yaml")
    parameters = schema["properties"]["repository"]["properties"]["parameters"]
    parameters["properties"] = {
        name: describe_parameter(each) for name, each in load_parameters().items()
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def describe_parameter(parameter: Parameter) -> dict[str, Any]:
    """Return the JSON schema of a parameter.

    A string is always valid, because `--param` accepts several spellings of a value.
    """
    schema: dict[str, Any] = {"description": parameter.explanation}
    if parameter.choices:
        return {"enum": list(parameter.choices), **schema}
    plain = _PARAMETER_TYPES.get(parameter.type)
    if plain is None:
        return {"type": ["string", "number"], **schema}
    return {"type": [plain, "string"], **schema}


def render_declaration_page() -> str:
    """Return tllm-yaml.md with the keys of each section."""
    sections = {}
    for section in option_fields(Declaration):
        options = section.part_of.options if section.part_of else section.kind
        rows = [describe_key(each) for each in option_fields(options) if each.is_declared]
        sections[section.name] = render_table(KEY_COLUMNS, rows)
    return fill_in(DOCS / "reference" / "tllm-yaml.md", sections)


def describe_key(field: OptionField) -> tuple[str, ...]:
    """Return a key in the order of KEY_COLUMNS."""
    help_text, _, _ = field.option.help.partition(" Default: ")
    return f"`{field.name}`", describe_values(field), describe_default(field), help_text


def describe_values(field: OptionField) -> str:
    """Return the accepted values of the key."""
    if field.choices:
        return ", ".join(f"`{word}`" for word in field.choices)
    if field.is_list:
        return "a list of text"
    if field.is_table:
        return "a table of text"
    text = _TAKES.get(field.kind, "a path")
    if (within := field.within) is None:
        return text
    if within.at_most is None:
        return f"{text} ≥ {within.at_least:g}"
    return f"{text}, {within.at_least:g} to {within.at_most:g}"


def describe_default(field: OptionField) -> str:
    """Return the default of the key: from its help, or the value itself."""
    _, _, stated = field.option.help.partition(" Default: ")
    if stated:
        return stated.rstrip(".")
    if field.is_required:
        return "required"
    if field.default in (None, (), {}):
        return ""
    value = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"`{value.lower() if field.kind is bool else value}`"
