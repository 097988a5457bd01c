"""Arguments of calls in XML, whose types the schemas determine."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.gateway.prompts.tools.call_body import XmlBody

TEXT, NUMBER, NULL = ({"type": each} for each in ("string", "number", "null"))
OPTIONAL_TEXT = {"anyOf": [TEXT, NULL]}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (TEXT, "90210", '"90210"'),
        ({}, "90210", '"90210"'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        (NUMBER, "90210", "90210"),
        (NUMBER, "many", '"many"'),
        (OPTIONAL_TEXT, "90210", '"90210"'),
        (OPTIONAL_TEXT, "true", '"true"'),
        (OPTIONAL_TEXT, "None", "null"),
        ({"type": ["string", "null"]}, "[1]", '"[1]"'),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "boolean"]}, "5", '"5"'),
        ({"oneOf": [TEXT, OPTIONAL_TEXT, NUMBER]}, "1.5", "1.5"),
        ({"anyOf": [TEXT, {"$ref": "#/$defs/City"}]}, '{"a": 1}', '{"a": 1}'),
        ({"allOf": [{"$ref": "#/$defs/City"}]}, '{"a": 1}', '{"a": 1}'),
        ({"$ref": "#/$defs/City"}, "Paris", '"Paris"'),
        ({"type": {"x": 1}}, "5", "5"),
        ({"anyOf": 5}, "5", "5"),
    ],
)
def test_schema_determines_the_type_of_an_argument(
    schema: dict[str, Any], value: str, expected: str
) -> None:
    body = XmlBody({"f": {"properties": {"x": schema}}})
    for char in f"<function=f><parameter=x>\n{value}\n</parameter></function>":
        body.push(char)
    assert body.is_done
    assert body.take() == f'{{"x": {expected}}}'
