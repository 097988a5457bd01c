"""Report how many faults were injected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

_PROPERTY = "faults"


@pytest.fixture
def note_faults(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Return a function that adds a number of injected faults of one kind to the summary."""

    def note(kind: str, number: int) -> None:
        record_property(_PROPERTY, (kind, number))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # The properties of a report also arrive from the processes of parallel runs.
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == _PROPERTY:
                        counts[value[0]] += value[1]
    for kind, number in counts.items():
        terminalreporter.write_line(f"{number} faults injected: {kind}")
    if counts:
        terminalreporter.write_line(f"{counts.total()} faults injected in total")
