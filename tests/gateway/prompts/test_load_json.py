from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.gateway.prompts.load_json import load_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_value_without_lone_surrogates_is_unchanged(value: Any, ensures_ascii: bool) -> None:
    assert load_json(json.dumps(value, ensure_ascii=ensures_ascii)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\uD83Dx"', "\ufffdx"),
        (r'{"a\udfff": ["\ud800"]}', {"a\ufffd": ["\ufffd"]}),
        (r'"\\ud83d"', r"\ud83d"),
    ],
)
def test_lone_surrogates_are_replaced(text: str, value: Any) -> None:
    assert load_json(text) == value
