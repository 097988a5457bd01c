"""Import a simulated engine with a fixed step duration."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trtllm_serve_cli.catalog.entries import resolve_alias
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    EngineSection,
    ModelSection,
    RepositorySection,
)
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.paths import Home

DEMO = resolve_alias("demo").source


def import_simulated(
    home: Home,
    name: str,
    step_ms: float,
    *,
    source: str = DEMO,
    max_batch_size: int = 64,
    parameters: Mapping[str, str] | None = None,
    repository: Path | None = None,
) -> None:
    """Import the source's tokenizer with a simulated engine, as `name` or into `repository`."""
    limits = {"max_batch_size": max_batch_size, "max_num_tokens": 65536}
    with tempfile.TemporaryDirectory() as folder:
        timing = Path(folder, "timing.json")
        timing.write_text(json.dumps({"timing": {"step_s": step_ms / 1000}, "limits": limits}))
        declaration = Declaration(
            ModelSection(name, source),
            EngineSection("sim", timing=timing),
            repository=RepositorySection(dir=repository, parameters=dict(parameters or {})),
        )
        import_model(declaration, home)
