"""The suites of other projects have the expected outcome: `make conformance`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.environments import NotInstalled, install
from tests.conformance.outcomes import compare, load_expected, read_outcomes
from tests.conformance.suites import SUITES, Suite

HERE = Path(__file__).parent


@pytest.mark.conformance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suite_has_the_expected_outcome(
    suite: Suite, gateway: Callable[[str], str], tmp_path: Path
) -> None:
    try:
        environment, tests = install(suite)
    except NotInstalled as error:
        pytest.skip(f"{suite.name} cannot be installed: {error}")
    run_suite(suite, environment, tests, gateway(suite.model), tmp_path)
    outcomes = read_outcomes(suite.report, tmp_path)
    differences = [*compare(load_expected(suite.name), outcomes)]
    assert not differences, "\n".join((*differences, f"Log: {tmp_path / 'log.txt'}"))


def run_suite(suite: Suite, environment: Path, tests: Path, gateway: str, output: Path) -> None:
    """Run the commands of a suite, and write what they print to `log.txt`."""
    (site,) = environment.glob("lib/python*/site-packages")
    names = {
        "bin": environment / "bin",
        "site": site,
        "here": HERE,
        "python": sys.executable,
        "output": output,
        "gateway": gateway,
        "port": gateway.rpartition(":")[2],
    }
    added = {
        "TLLM_GATEWAY": gateway,
        "TLLM_MODEL": suite.model,
        "PYTHONPATH": str(HERE),
        **{key: value.format(**names) for key, value in suite.environ.items()},
    }
    with (output / "log.txt").open("w") as log:
        for command in suite.commands:
            words = [each.format(**names) for each in command]
            environ = {**os.environ, **added}
            subprocess.run(words, cwd=tests, env=environ, stdout=log, stderr=log, check=False)
