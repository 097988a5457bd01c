"""From a `RepositoryPlan` to files."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from trtllm_serve_cli import __version__
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.repository.model.model_config import ModelConfig, RepositoryPlan
from trtllm_serve_cli.repository.pbtxt import quoted

MANIFEST = "tllm.json"
MANIFEST_SCHEMA = 1
# The name of the copied runtime package; `python3 -m tllm_runtime.worker` starts an engine worker.
RUNTIME_PACKAGE = "tllm_runtime"


def render_files(plan: RepositoryPlan) -> dict[str, str]:
    """Relative path -> text of every file of the repository, its manifest aside."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trtllm_serve_cli.repository"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = quoted
    runtime = _runtime_sources()
    files: dict[str, str] = {}
    for model in plan.models:
        context: dict[str, Any] = {"model": model, "version": __version__}
        text = environment.get_template("config.pbtxt.j2").render(context)
        files[f"{model.name}/config.pbtxt"] = text
        for name, text in _version_files(model, runtime).items():
            files[f"{model.name}/1/{name}"] = text
        if model.module is not None:
            text = environment.get_template("model.py.j2").render(context)
            files[f"{model.name}/1/model.py"] = text
    return files


def _version_files(model: ModelConfig, runtime: Mapping[str, str]) -> dict[str, str]:
    files = dict(model.files)
    if model.module is not None:
        files |= {f"{RUNTIME_PACKAGE}/{name}": source for name, source in runtime.items()}
    # Triton wants the folder of a version even when its backend finds nothing in it.
    return files or {".keep": ""}


def write_repository(plan: RepositoryPlan, destination: Path) -> None:
    """Render `plan` into `destination`, which appears whole or stays as it was."""
    files = render_files(plan)
    with write_aside(destination) as aside:
        for relative, text in files.items():
            path = aside / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        manifest = manifest_of(plan, int(time.time()))
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def manifest_of(plan: RepositoryPlan, created_at: int) -> dict[str, Any]:
    """What `tllm.json` in the repository says of it; `created_at` is in seconds since the epoch."""
    return {
        "schema": MANIFEST_SCHEMA,
        "name": plan.name,
        "layout": plan.layout,
        "created_at": created_at,
        "created_by": f"tllm {__version__}",
        "engine": dataclasses.asdict(plan.engine) | {"path": str(plan.engine.path)},
        "models": [model.name for model in plan.models],
        "parameters": dict(plan.parameters),
        "asked": list(plan.asked),
        "set": dict(plan.preserved),
        "declaration": dict(plan.declaration),
    }


def _runtime_sources() -> dict[str, str]:
    """Path below the package -> text of every Python file of it, sub-packages included."""
    package = Path(str(resources.files("trtllm_serve_cli.runtime")))
    return {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }
