"""Read the reports of suites, and compare them with the expected outcomes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

EXPECTED = Path(__file__).parent / "expected"
Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Expected:
    """The recorded outcome of a suite: how many tests pass and are skipped, and which fail.

    `failures` has the reason for each test that fails; a name without parameters stands for all
    parameters of the test. `unstable` has the reason for each test that passes in some runs only.
    These are not counted.
    """

    date: str
    passed: int
    failed: int = 0
    skipped: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    unstable: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {"pass": self.passed, "fail": self.failed, "skipped": self.skipped}
        counts["unstable"] = len(self.unstable)
        return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def load_expected(suite: str) -> Expected:
    data: dict[str, Any] = yaml.safe_load((EXPECTED / f"{suite}.yaml").read_text("utf-8"))
    for kind in ("failures", "unstable"):
        groups = data.get(kind, [])
        data[kind] = {test: group["reason"] for group in groups for test in group["tests"]}
    return Expected(**{**data, "date": str(data["date"])})


def compare(expected: Expected, outcomes: Outcomes) -> Iterator[str]:
    """Yield each difference: unexpected failures and passes, and tests that did not run."""
    outcomes = {test: each for test, each in outcomes.items() if test not in expected.unstable}
    seen = set()
    for test, outcome in outcomes.items():
        name = test if test in expected.failures else test.partition("[")[0]
        reason = expected.failures.get(name)
        seen.add(name)
        if outcome == "failed" and reason is None:
            yield f"{test} failed"
        elif outcome != "failed" and reason is not None:
            yield f"{test} {outcome}, but is expected to fail: {reason}"
    yield from (f"{test} did not run" for test in expected.failures if test not in seen)
    counts = Counter(outcomes.values())
    for outcome in ("passed", "failed", "skipped"):
        if counts[outcome] != (number := getattr(expected, outcome)):
            yield f"{counts[outcome]} tests {outcome}, expected: {number}"


def read_outcomes(report: str, output: Path) -> dict[str, str]:
    """Return `passed`, `failed` or `skipped` for each test in a report of a suite."""
    readers = {"junit": read_junit, "lm-eval": read_samples, "rows": read_rows}
    return dict(readers[report](output))


def read_junit(output: Path) -> Iterator[tuple[str, str]]:
    """Yield the tests of a report in JUnit's format, which pytest and Schemathesis write."""
    for case in _parse_cases(output / "junit.xml"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        kinds = {each.tag for each in case}
        failed = kinds & {"failure", "error"}
        yield name, "failed" if failed else "skipped" if "skipped" in kinds else "passed"


def _parse_cases(report: Path) -> Iterator[ElementTree.Element]:
    """Yield nothing if the suite ended without a report."""
    if report.exists():
        yield from ElementTree.parse(report).iter("testcase")


def read_samples(output: Path) -> Iterator[tuple[str, str]]:
    """Yield the questions of lm-eval's tasks: a correct answer passes."""
    for file in sorted(output.rglob("samples_*.jsonl")):
        task = file.name.removeprefix("samples_").rpartition("_")[0]
        for line in file.read_text("utf-8").splitlines():
            sample = json.loads(line)
            correct = sample.get("acc", sample.get("exact_match"))
            name = f"{file.relative_to(output).parts[0]}::{task}::{sample['doc']['question']}"
            yield name, "passed" if correct else "failed"


def read_rows(output: Path) -> Iterator[tuple[str, str]]:
    """Yield the clients with a row in the table of `benchmarks/gateway_clients.py`."""
    for line in (output / "log.txt").read_text("utf-8").splitlines():
        name, *numbers = line.split()
        if numbers and numbers[0][0].isdigit():
            yield name, "passed"
