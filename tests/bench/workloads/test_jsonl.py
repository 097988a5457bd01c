from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtllm_serve_cli.bench.workloads.jsonl import Line, read_jsonl, read_objects
from trtllm_serve_cli.errors import BadInput

objects = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(), max_size=3),
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects, st.sampled_from([None, 1, 4]))
def test_arrays_and_lines_are_equivalent(
    tmp_path: Path, values: list[dict[str, Any]], indent: int | None
) -> None:
    array, lines = tmp_path / "a.json", tmp_path / "a.jsonl"
    array.write_text(json.dumps(values, indent=indent))
    lines.write_text("".join(json.dumps(value) + "\n" for value in values))
    assert [line.fields for line in read_objects(array)] == values
    assert [line.fields for line in read_objects(lines)] == values


def test_each_object_has_its_line_number(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[\n {"a": 1},\n\n {"b":\n 2}, {"c": 3}\n]')
    assert [line.where for line in read_objects(file)] == [f"{file}:{n}" for n in (2, 4, 5)]


@pytest.mark.parametrize(
    ("content", "line"),
    [('{"a": 1}\n{"a": \n', 2), ("\n[1]\n", 2), ('{"a": 1} {"b": 2}', 1), ("not JSON", 1)],
    ids=["truncated", "not an object", "two in a line", "text"],
)
def test_invalid_line_is_rejected_with_its_number(tmp_path: Path, content: str, line: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_jsonl(file)
    assert f" at {file}:{line} is " in refused.value.what


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[1]", "the entry is not a JSON object"),
        ('{"a": 1} {"b": 2}', "the line contains more than one JSON value"),
    ],
)
def test_reason_names_the_problem(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_jsonl(file)
    assert refused.value.why == why


def test_field_with_a_wrong_type_is_named() -> None:
    with pytest.raises(BadInput) as refused:
        Line("f:1", {"text": 5}).text("prompt", "text")
    assert refused.value.why == "the text field must be a string, but is 5 (fields: text)"


def test_truncated_array_is_rejected_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[\n{"a": 1},\n{"b"')
    with pytest.raises(BadInput) as refused:
        read_objects(file)
    assert f" at {file}:3 is " in refused.value.what


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")
