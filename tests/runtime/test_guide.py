"""Validation of guides, and their arguments of engines."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.runtime.guide import find_guide_problem, guide_arguments


@pytest.mark.parametrize(
    ("guide_type", "guide"),
    [
        ("json", ""),
        ("json_schema", '{"type": "object"}'),
        ("json_schema", "true"),
        ("regex", "[0-9]+"),
        ("ebnf_grammar", 'root ::= "yes"'),
        ("structural_tag", '{"type": "structural_tag"}'),
    ],
)
def test_valid_guide_has_no_problem(guide_type: str, guide: str) -> None:
    assert find_guide_problem(guide_type, guide) is None


@pytest.mark.parametrize(
    ("guide_type", "guide", "problem"),
    [
        ("regex", "", "is missing, but the guide type regex requires a guide; send a guide"),
        ("json_schema", "{", "is not valid JSON (Expecting property name"),
        ("json_schema", "[" * 100_000, "is 100000 bytes long; send at most 65536 bytes"),
        ("json_schema", "[" * 60_000, "is not valid JSON (maximum recursion depth exceeded"),
        ("structural_tag", "[1]", "is not a JSON object; send an object"),
        ("ebnf_grammar", "root\0", "contains a NUL character; remove the character"),
    ],
    ids=lambda value: value[:12],
)
def test_reports_the_problem_of_an_invalid_guide(guide_type: str, guide: str, problem: str) -> None:
    found = find_guide_problem(guide_type, guide)
    assert found is not None and found.startswith(problem)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("json", {"json_object": True}),
        ("json_schema", {"json": "{}"}),
        ("regex", {"regex": "{}"}),
        ("ebnf_grammar", {"grammar": "{}"}),
        ("structural_tag", {"structural_tag": "{}"}),
        (None, {}),
    ],
)
def test_guide_arguments_of_engines(kind: str | None, expected: dict[str, Any]) -> None:
    assert guide_arguments(kind, "{}") == expected
