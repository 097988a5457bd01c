"""Report how many faults were injected."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import pytest

_PROPERTY = "faults"


@pytest.fixture
def note_faults(
    record_property: Callable[[str, object], None],
) -> Callable[[str, Iterable[str]], None]:
    """Return a function that adds injected faults to the summary, for example of files."""

    def note(group: str, faults: Iterable[str]) -> None:
        record_property(_PROPERTY, (group, dict(Counter(faults))))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # The properties of a report also arrive from the processes of parallel runs.
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == _PROPERTY:
                        groups[value[0]].update(value[1])
    for group, counts in sorted(groups.items()):
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
        terminalreporter.write_line(f"{counts.total()} {group} faults injected: {kinds}")
