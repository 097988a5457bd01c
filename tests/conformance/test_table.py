"""The table of docs/guides/openai-api.md has the suites, their versions and their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.outcomes import EXPECTED, load_expected
from tests.conformance.suites import SUITES, Suite

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "openai-api.md"
NAMES = [each.name for each in SUITES]


def read_table() -> dict[str, list[str]]:
    """Return the other cells of each row by the name of the suite."""
    _, _, section = PAGE.read_text("utf-8").partition("| Suite |")
    lines = section.partition("\n\n")[0].splitlines()[2:]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {name.strip("`"): cells for name, *cells in rows}


def test_table_and_data_have_the_same_suites() -> None:
    assert [*read_table()] == NAMES
    assert sorted(each.stem for each in EXPECTED.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("suite", SUITES, ids=NAMES)
def test_row_has_the_versions_and_the_recorded_result(suite: Suite) -> None:
    versions, _, result, _ = read_table()[suite.name]
    expected = load_expected(suite.name)
    assert [each for each in suite.list_versions() if each not in versions] == []
    assert result.startswith(f"{expected}; {expected.date}")


@pytest.mark.parametrize("suite", SUITES, ids=NAMES)
def test_known_failures_have_reasons(suite: Suite) -> None:
    expected = load_expected(suite.name)
    assert bool(expected.failed) == bool(expected.failures)
    assert all(expected.failures.values())
