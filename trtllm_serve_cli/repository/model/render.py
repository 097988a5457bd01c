"""Render a `RepositoryPlan` as model repository files."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli import __version__
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.rendering import render
from trtllm_serve_cli.repository.model.model_config import ModelConfig, RepositoryPlan
from trtllm_serve_cli.repository.model.runtime_copy import (
    FINGERPRINT,
    RUNTIME_PACKAGE,
    fingerprint_runtime,
    read_runtime,
)
from trtllm_serve_cli.repository.model.store import MANIFEST

MANIFEST_SCHEMA = 1


def render_files(plan: RepositoryPlan) -> dict[str, str]:
    """Return the text of each repository file except the manifest, keyed by relative path."""
    runtime = read_runtime(plan.engine.kind)
    files: dict[str, str] = {}
    for model in plan.models:
        config = render("model_repository/config.pbtxt.j2", model=model, version=__version__)
        files[f"{model.name}/config.pbtxt"] = config
        for name, text in _version_files(model, runtime).items():
            files[f"{model.name}/1/{name}"] = text
        if model.module is not None:
            module = render("model_repository/model.py.j2", model=model, version=__version__)
            files[f"{model.name}/1/model.py"] = module
    return files


def _version_files(model: ModelConfig, runtime: Mapping[str, str]) -> dict[str, str]:
    files = dict(model.files)
    if model.module is not None:
        files |= {f"{RUNTIME_PACKAGE}/{name}": source for name, source in runtime.items()}
    # Triton requires a version folder. If the backend needs no files, add an empty file, so that
    # the folder is created.
    return files or {".keep": ""}


def write_repository(plan: RepositoryPlan, destination: Path) -> None:
    """Write the repository to `destination`. If an error occurs, `destination` is unchanged."""
    files = render_files(plan)
    with write_aside(destination) as aside:
        # Not a set, whose order would differ in each run: fault injection repeats the operations.
        for folder in dict.fromkeys((aside / relative).parent for relative in files):
            folder.mkdir(parents=True, exist_ok=True)
        for relative, text in files.items():
            (aside / relative).write_text(text, encoding="utf-8")
        manifest = manifest_of(plan, int(time.time()))
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def manifest_of(plan: RepositoryPlan, created_at: int) -> dict[str, Any]:
    """Return the contents of the repository's `tllm.json`.

    `created_at` is in seconds since the epoch.
    """
    return {
        "schema": MANIFEST_SCHEMA,
        "name": plan.name,
        "layout": plan.layout,
        "created_at": created_at,
        "created_by": f"tllm {__version__}",
        FINGERPRINT: fingerprint_runtime(read_runtime(plan.engine.kind)),
        "engine": _facts_of(plan.engine),
        "models": [model.name for model in plan.models],
        "parameters": dict(plan.parameters),
        "asked": list(plan.requested),
        "set": dict(plan.preserved),
        "declaration": dict(plan.declaration),
    }


def _facts_of(engine: Engine) -> dict[str, Any]:
    """Return the engine as a JSON-compatible dict.

    The `details` field is omitted, because its type depends on the engine kind.
    """
    facts = dataclasses.asdict(dataclasses.replace(engine, details=None))
    del facts["details"]
    return facts | {"path": str(engine.path)}
