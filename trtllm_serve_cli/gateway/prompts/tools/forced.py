"""Force tool calls with guided decoding and parse them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_serve_cli.gateway.prompts.tools.call_body import ArgumentsBody, ObjectBody
from trtllm_serve_cli.gateway.prompts.tools.tool_parser import ToolOptions, ToolParser

NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class NamedCallParser(ToolParser):
    """A parser for text that contains only the arguments of one function."""

    def __init__(self, options: ToolOptions, name: str) -> None:
        super().__init__(options)
        self._open_body(ArgumentsBody(name), self._read_content)

    def _read_content(self) -> bool:
        return self._read_until({}, keeps_tag=False)


class CallListParser(ToolParser):
    """A parser for text that is either one call or an array of calls."""

    def __init__(self, options: ToolOptions) -> None:
        super().__init__(options)
        self._state = self._read_item

    def _read_item(self) -> bool:
        if not self._skip_space("[],"):
            return False
        if self._buffer[0] == "{":
            return self._open_body(ObjectBody(self._options.schemas), self._read_item)
        return self._give_up()

    def _read_content(self) -> bool:
        return self._read_until({}, keeps_tag=False)


def guide_named_call(options: ToolOptions, name: str) -> tuple[str, str]:
    """Return the guide that restricts the response to the arguments of one function."""
    return "json_schema", json.dumps(options.schemas[name])


def guide_any_call(options: ToolOptions) -> tuple[str, str]:
    """Return the guide that forces one call, or a list of calls if `options` allows several."""
    definitions: dict[str, Any] = {}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "arguments": _embed(schema, name, definitions),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in options.schemas.items()
    ]
    call: dict[str, Any] = {"anyOf": calls} if len(calls) > 1 else calls[0]
    schema = {"type": "array", "items": call, "minItems": 1} if options.allows_several else call
    return "json_schema", json.dumps(schema | ({"$defs": definitions} if definitions else {}))


def _embed(schema: Mapping[str, Any], name: str, definitions: dict[str, Any]) -> Any:
    """Move the definitions from a function's schema to `definitions` and return the rest.

    The guide contains the definitions of all functions, so the name of each definition is prefixed
    with the name of its function.
    """
    moved = ("$defs", "definitions")
    for key in moved:
        if isinstance(inner := schema.get(key), Mapping):
            for inner_name, definition in inner.items():
                definitions[f"{name}-{inner_name}"] = _rename_references(definition, name)
    return _rename_references({k: v for k, v in schema.items() if k not in moved}, name)


def _rename_references(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_rename_references(each, name) for each in value]
    if not isinstance(value, Mapping):
        return value
    renamed = {key: _rename_references(each, name) for key, each in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str):
        for prefix in ("#/$defs/", "#/definitions/"):
            if reference.startswith(prefix):
                renamed["$ref"] = f"#/$defs/{name}-{reference.removeprefix(prefix)}"
    return renamed
