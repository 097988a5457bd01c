"""Report how many faults were injected."""

from __future__ import annotations

from collections import Counter

import pytest

_COUNTS = pytest.StashKey[Counter[str]]()


@pytest.fixture
def fault_counts(request: pytest.FixtureRequest) -> Counter[str]:
    """Count the injected faults by the name of the test."""
    return request.config.stash.setdefault(_COUNTS, Counter())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash.get(_COUNTS, Counter())
    for name, count in counts.items():
        terminalreporter.write_line(f"{count} faults injected: {name}")
    if counts:
        terminalreporter.write_line(f"{counts.total()} faults injected in total")
