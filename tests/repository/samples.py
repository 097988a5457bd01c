"""Imported models without an import."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.build.samples import ENGINE
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository import (
    ImportedModel,
    ServingOptions,
    plan_repository,
    write_repository,
)
from trtllm_serve_cli.repository.store import read_manifest


def add_model(home: Home, name: str, engine_path: Path | None = None) -> ImportedModel:
    """A model with an empty engine, in the engine store unless told otherwise."""
    path = engine_path or home.engines / name
    path.mkdir(parents=True, exist_ok=True)
    engine = dataclasses.replace(ENGINE, path=path)
    write_repository(plan_repository(name, engine, ServingOptions()), home.models / name)
    return read_manifest(home.models / name)
