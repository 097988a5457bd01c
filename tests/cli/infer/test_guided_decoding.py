from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.cli.infer.guided_decoding import Guide, GuideKind, plan_guide
from trtllm_serve_cli.errors import BadInput

NONE: dict[str, Any] = {
    "guide": None,
    "json_schema": None,
    "regex": None,
    "grammar": None,
    "structural_tag": None,
}


@pytest.mark.parametrize(
    ("option", "value", "guide"),
    [
        ("guide", GuideKind.json, Guide("json")),
        ("regex", "", Guide("regex", "")),
        ("json_schema", " {}", Guide("json_schema", " {}")),
        ("structural_tag", '{"a": 1}', Guide("structural_tag", '{"a": 1}')),
        ("grammar", "root ::= x", Guide("ebnf_grammar", "root ::= x")),
        (None, None, Guide(None, None)),
    ],
)
def test_guide_of_each_option(option: str, value: object, guide: Guide) -> None:
    given = {**NONE, option: value} if option else NONE
    assert plan_guide(**given) == guide


def test_guide_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    given = {**NONE, "json_schema": str(file)}
    assert plan_guide(**given) == Guide("json_schema", '{"type": "string"}')


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("json_schema", "{", "What --json-schema gives is not JSON."),
        ("json_schema", "no-such.json", "no-such.json cannot be read."),
        ("grammar", "no-such.ebnf", "no-such.ebnf cannot be read."),
    ],
)
def test_guide_that_cannot_be_used_is_told(option: str, value: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as raised:
        plan_guide(**{**NONE, option: value})
    assert option.replace("_", "-") in raised.value.next_step
