"""Unexpected failures, unexpected passes and lost tests are found in the outcome of a suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.outcomes import Expected, compare, read_outcomes

EXPECTED = Expected("2026-11-24", 1, 2, 0, {"limit": "not supported", "text[a]": "other model"})
AS_EXPECTED = {"chat": "passed", "limit[1]": "failed", "text[a]": "failed"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"chat": "failed"}, ["chat failed", "0 tests passed, expected: 1"]),
        (
            {"limit[1]": "passed"},
            ["limit[1] passed, but is expected to fail: not supported"],
        ),
        ({"text[b]": "failed"}, ["text[b] failed", "3 tests failed, expected: 2"]),
        ({"text[a]": "skipped"}, ["text[a] skipped, but is expected to fail: other model"]),
        ({"new": "passed"}, ["2 tests passed, expected: 1"]),
    ],
    ids=["as-expected", "failure", "pass", "other-parameters", "skipped", "new"],
)
def test_differences_are_found(changes: dict[str, str], found: list[str]) -> None:
    differences = [*compare(EXPECTED, {**AS_EXPECTED, **changes})]
    assert differences[: len(found)] == found
    assert bool(differences) == bool(found)


def test_a_test_that_did_not_run_is_found() -> None:
    assert [*compare(EXPECTED, {"chat": "passed", "limit[1]": "failed"})] == [
        "text[a] did not run",
        "1 tests failed, expected: 2",
    ]


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_an_unstable_test_may_pass_or_fail(outcome: str) -> None:
    expected = Expected("2026-11-24", 1, unstable={"text": "depends on load"})
    assert [*compare(expected, {"chat": "passed", "text": outcome})] == []


def test_junit_reports_are_read(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><testcase classname="a.B" name="c"/>'
        '<testcase name="d"><error/></testcase><testcase name="e"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    expected = {"a.B::c": "passed", "d": "failed", "e": "skipped"}
    assert read_outcomes("junit", tmp_path) == expected


def test_a_suite_without_a_report_ran_no_test(tmp_path: Path) -> None:
    assert read_outcomes("junit", tmp_path) == {}


def test_samples_of_lm_eval_are_read(tmp_path: Path) -> None:
    file = tmp_path / "chat" / "demo" / "samples_tllm_generate_2026-11-24T19.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(
        '{"doc": {"question": "One?"}, "exact_match": 1.0}\n'
        '{"doc": {"question": "Two?"}, "exact_match": 0.0}\n'
    )
    expected = {"chat::tllm_generate::One?": "passed", "chat::tllm_generate::Two?": "failed"}
    assert read_outcomes("lm-eval", tmp_path) == expected


def test_rows_of_load_generators_are_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("client  tokens/s\ntllm  20.1\nprogram failed:\n")
    assert read_outcomes("rows", tmp_path) == {"tllm": "passed"}
