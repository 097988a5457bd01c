from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.cli.infer.guided_decoding import Guide, plan_guide
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("option", "value", "guide"),
    [
        ("guide", "json", Guide("json")),
        ("regex", "", Guide("regex", "")),
        ("json_schema", " {}", Guide("json_schema", " {}")),
        ("structural_tag", '{"a": 1}', Guide("structural_tag", '{"a": 1}')),
        ("grammar", "root ::= x", Guide("ebnf_grammar", "root ::= x")),
        (None, None, Guide(None, None)),
    ],
)
def test_guide_of_each_option(option: str, value: Any, guide: Guide) -> None:
    options = {option: value} if option else {}
    assert plan_guide(InferOptions(**options)) == guide


def test_guide_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    assert plan_guide(InferOptions(json_schema=str(file))) == Guide(
        "json_schema", '{"type": "string"}'
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("json_schema", "{", "The value of --json-schema is not valid JSON."),
        ("json_schema", "no-such.json", "no-such.json cannot be read."),
        ("grammar", "no-such.ebnf", "no-such.ebnf cannot be read."),
    ],
)
def test_unusable_guide_is_refused(option: str, value: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        plan_guide(InferOptions(**{option: value}))
    assert option.replace("_", "-") in raised.value.next_step
