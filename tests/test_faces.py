"""The faces of the stages, whose names are looked up only when somebody uses them."""

from __future__ import annotations

import importlib

import pytest

FACES = ("build", "build.tensorrt", "launch", "repository", "sizing", "sources")


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_there(face: str) -> None:
    module = importlib.import_module(f"trtllm_serve_cli.{face}")
    assert module.__all__
    for name in module.__all__:
        getattr(module, name)
