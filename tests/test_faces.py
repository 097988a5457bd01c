"""The faces of the stages, whose names are looked up only when somebody uses them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

FACES = ("bench.results", "build", "build.tensorrt", "launch", "repository", "sizing", "sources")


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_there(face: str) -> None:
    module = importlib.import_module(f"trtllm_serve_cli.{face}")
    assert module.__all__
    for name in module.__all__:
        getattr(module, name)


def test_what_a_run_prints_needs_no_templates() -> None:
    program = "import sys, trtllm_serve_cli.bench.tables; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
