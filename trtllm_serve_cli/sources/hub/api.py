"""Fetch a checkpoint from the Hugging Face Hub into the cache and pin it to a commit.

Before any large download, this module checks the repository's file list and small files. By
default, the checkpoint must have safetensors weights, and its configs must not refer to Python
code. The disk must have enough space for the files.

Interrupted downloads are resumed. Downloaded files are verified against the sizes and checksums
that the hub provides. If the hub cannot be reached, a complete copy in the cache is used.
"""

from __future__ import annotations

import glob
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trtllm_serve_cli import __version__
from trtllm_serve_cli.errors import BadInput, SourceError, UnsafeCheckpoint
from trtllm_serve_cli.paths import Home, write_text
from trtllm_serve_cli.sources.checkpoint import (
    FILES_WITH_AUTO_MAP,
    QUANTIZATION_FILE,
    WEIGHTS_INDEX,
    Checkpoint,
    FetchOptions,
    check_has_config,
    check_has_tokenizer,
    check_runs_no_code,
    choose_weights,
    inspect_config,
    inspect_hf_directory,
    is_weights,
    read_architecture,
    read_index,
)
from trtllm_serve_cli.sources.disk_space import check_space, show_size
from trtllm_serve_cli.sources.formats.chat_templates import TEMPLATE_FILE
from trtllm_serve_cli.sources.formats.sentence_transformers import (
    MODULE_CONFIG,
    MODULES_FILE,
    PROMPTS_FILE,
    TRANSFORMER_FILE,
)
from trtllm_serve_cli.sources.hub.blobs import Blob, Effects, fetch_blob
from trtllm_serve_cli.sources.hub.bytes import XetGroup, find_remote_file
from trtllm_serve_cli.sources.hub.errors import (
    BrokenDownload,
    HubBusy,
    HubUnreachable,
    explain_web_page,
    translate_hub_errors,
)
from trtllm_serve_cli.sources.hub_address import Hub, HubAddress
from trtllm_serve_cli.sources.parallel import run_parallel
from trtllm_serve_cli.sources.progress import Meter, Watch
from trtllm_serve_cli.sources.verify import remove_with_targets, verify_files

_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_TIMEOUT_S = 30.0
# Maximum number of parallel downloads, as in huggingface_hub. Files are downloaded in parallel,
# because a single connection may not use the full bandwidth.
_MAX_WORKERS = 8
# Maximum number of attempts to download the small files. Retries are necessary, because
# huggingface_hub versions before 2.0 do not retry interrupted downloads.
_SNAPSHOT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository on the hub. `sha256` is None unless the file is stored with LFS."""

    name: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class _Listing:
    """A hub repository's current name, commit and files.

    Files in subfolders are omitted, except for additional chat templates and the configurations of
    an embedding model's modules.
    """

    repository: str
    commit: str
    files: dict[str, HubFile]


def find_cached_config(source: HubAddress, hub: Hub) -> Path | None:
    """Return the path of the cached config.json, or None if this revision is not in the cache."""
    return _find_cached(source, "config.json", hub)


def fetch_small_file(source: HubAddress, name: str, hub: Hub) -> Path | None:
    """Fetch a file into the cache. Return its path, or `None` if the repository lacks the file.

    If the hub cannot be reached but config.json is in the cache, look up the file only in the
    cache. If the cache already contains config.json for this revision, do not record a newer
    commit, because offline use would then fail until the newer commit's weights are downloaded.
    Raise `SourceError` if the file cannot be fetched.
    """
    try:
        listing = _list_repository(source, hub)
    except (HubUnreachable, HubBusy):
        if find_cached_config(source, hub) is None:
            raise
        return _find_cached(source, name, hub)
    if name not in listing.files:
        return None
    path = _download_one(HubAddress(source.repository, listing.commit), name, hub)
    if find_cached_config(source, hub) is None:
        folder = hub.find_folder(source.repository)
        _record_revision(source.revision or "main", listing.commit, folder)
    return path


def find_file_size(source: HubAddress, name: str, hub: Hub) -> int | None:
    """Return the size of a file in bytes, or `None` if the repository lacks the file.

    If the hub cannot be reached, look up the file only in the cache.
    """
    try:
        file = _list_repository(source, hub).files.get(name)
    except (HubUnreachable, HubBusy):
        path = _find_cached(source, name, hub)
        return path.stat().st_size if path else None
    return file.size_bytes if file else None


def _find_cached(source: HubAddress, name: str, hub: Hub) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        source.repository, name, cache_dir=hub.cache, revision=source.revision
    )
    return Path(found) if isinstance(found, str) else None


def fetch_from_hub(
    source: HubAddress,
    *,
    hub: Hub,
    home: Home,
    options: FetchOptions,
    notify: Callable[[str], None],
    watch: Watch,
) -> Checkpoint:
    """Fetch the checkpoint into the Hugging Face cache.

    If the hub cannot be reached, use the copy in the cache. The `source` of the returned checkpoint
    is pinned to the commit. Raise `SourceError` if the checkpoint is rejected or cannot be fetched.
    """
    try:
        listing = _list_repository(source, hub)
    except (HubUnreachable, HubBusy) as error:
        return _use_cache(source, hub, options, notify, error)
    if listing.repository.lower() != source.repository.lower():
        notify(f"{source.repository} has been renamed to {listing.repository}.")
    commit = listing.commit
    pinned = HubAddress(source.repository, commit)
    chosen = _choose_files(pinned, listing.files, hub, options)
    folder, hashed = _download(pinned, chosen, hub, notify, watch)
    ledger = home.checkpoints / f"hf--{source.repository.replace('/', '--')}" / f"{commit}.json"
    checksums = {file.name: file.sha256 for file in chosen if file.sha256}
    verify_files(folder, checksums, ledger=ledger, notify=notify, watch=watch, verified=hashed)
    _record_revision(source.revision or "main", commit, hub.find_folder(source.repository))
    return _inspect(folder, source, options)


def inspect_on_hub(source: HubAddress, *, hub: Hub, options: FetchOptions) -> Checkpoint | None:
    """Return the checkpoint that `fetch_from_hub` would return, but download only small files.

    If the hub cannot be reached, return the checkpoint in the cache, which may lack the weights, or
    None if the cache lacks config.json. Raise the errors that `fetch_from_hub` raises before the
    first large download, except the error for insufficient disk space.
    """
    try:
        listing = _list_repository(source, hub)
    except (HubUnreachable, HubBusy) as error:
        try:
            return _use_cache(source, hub, options, lambda text: None, error)
        except UnsafeCheckpoint:
            raise
        except SourceError:
            return _inspect_cached_config(source, hub, options)
    pinned = HubAddress(source.repository, listing.commit)
    chosen = _choose_files(pinned, listing.files, hub, options)
    folder = _download_one(pinned, "config.json", hub).parent
    size_bytes = sum(file.size_bytes for file in chosen if is_weights(file.name))
    return Checkpoint(
        folder, "hf", str(pinned), listing.commit, read_architecture(folder), size_bytes
    )


def _inspect_cached_config(
    source: HubAddress, hub: Hub, options: FetchOptions
) -> Checkpoint | None:
    config = find_cached_config(source, hub)
    if config is None:
        return None
    pinned = HubAddress(source.repository, config.parent.name)
    return inspect_config(
        config.parent, source=str(pinned), revision=pinned.revision, options=options
    )


def _inspect(snapshot: Path, source: HubAddress, options: FetchOptions) -> Checkpoint:
    pinned = HubAddress(source.repository, snapshot.name)
    return inspect_hf_directory(
        snapshot, source=str(pinned), revision=snapshot.name, options=options
    )


def _list_repository(source: HubAddress, hub: Hub) -> _Listing:
    from huggingface_hub import HfApi

    _check_hub(source, hub)
    api = HfApi(endpoint=hub.endpoint, library_name="tllm", library_version=__version__)
    with translate_hub_errors(source, hub.url):
        try:
            info = api.model_info(
                source.repository, revision=source.revision, files_metadata=True, timeout=_TIMEOUT_S
            )
        except (ValueError, LookupError, TypeError) as error:
            raise explain_web_page(hub.url) from error
    if not info.sha or info.siblings is None:
        raise explain_web_page(hub.url)
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
        for each in info.siblings
    ]
    used = {
        file.name: file
        for file in files
        if "/" not in file.name
        or MODULE_CONFIG.fullmatch(file.name)
        or TEMPLATE_FILE.fullmatch(file.name)
    }
    return _Listing(str(info.id), str(info.sha), used)


def _check_hub(source: HubAddress, hub: Hub) -> None:
    if hub.is_offline:
        raise HubUnreachable(
            f"{source} was not fetched from the hub.",
            why="HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so only the cache is used",
            next_step="run `unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE`, or download the model to "
            f"the cache ({hub.cache}) while the hub can be reached",
        )
    if not hub.url.startswith(("http://", "https://")):
        raise BadInput(
            f"{hub.url} is not a valid Hugging Face Hub address.",
            why="HF_ENDPOINT must start with https:// or http://",
            next_step="set HF_ENDPOINT=https://HOST, or unset HF_ENDPOINT to use huggingface.co",
        )


def _choose_files(
    pinned: HubAddress, files: Mapping[str, HubFile], hub: Hub, options: FetchOptions
) -> list[HubFile]:
    """Return the files to download: the weights in one format and all small files.

    Python files are included only if `options.trust_remote_code` is set. Raise `SourceError` if the
    checkpoint is rejected. This function does not download large files.
    """
    check_has_config(str(pinned), files)
    for name in (*FILES_WITH_AUTO_MAP, QUANTIZATION_FILE):
        if name in files:
            folder = _download_one(pinned, name, hub).parent
    if not options.trust_remote_code:
        check_runs_no_code(folder)
    if MODULES_FILE in files:
        for name in filter(_describes_embeddings, files):
            _download_one(pinned, name, hub)
    read_architecture(folder)
    weights: tuple[str, ...] = ()
    if options.needs_weights:
        index = partial(_download_one, pinned, WEIGHTS_INDEX, hub)
        weights = choose_weights(str(pinned), files, lambda: read_index(index()), options)
    check_has_tokenizer(str(pinned), files)
    suffixes = (*_SMALL_FILES, ".py") if options.trust_remote_code else _SMALL_FILES
    return [file for name, file in files.items() if name in weights or name.endswith(suffixes)]


def _describes_embeddings(name: str) -> bool:
    """Return whether the file configures an embedding model."""
    return name in (MODULES_FILE, TRANSFORMER_FILE, PROMPTS_FILE) or bool(
        MODULE_CONFIG.fullmatch(name)
    )


def _download_one(pinned: HubAddress, name: str, hub: Hub) -> Path:
    from huggingface_hub import hf_hub_download

    _hide_progress()
    with translate_hub_errors(pinned, hub.url):
        path = hf_hub_download(
            pinned.repository,
            name,
            revision=pinned.revision,
            cache_dir=hub.cache,
            endpoint=hub.endpoint,
        )
    return Path(path)


def _download(
    pinned: HubAddress, files: list[HubFile], hub: Hub, notify: Callable[[str], None], watch: Watch
) -> tuple[Path, set[str]]:
    """Download `files`. Return the snapshot folder and the names of the files that were hashed.

    First, this function downloads large files into blobs named after their SHA-256. Afterwards,
    huggingface_hub links the snapshot to these blobs and downloads the small files.
    """
    missing = [file for file in files if not _find_complete(pinned, file, hub)]
    blobs = [_plan_blob(file, pinned, hub) for file in missing if file.sha256]
    if missing:
        partial_bytes = sum(blob.find_partial_bytes() for blob in blobs)
        total = sum(file.size_bytes for file in missing)
        check_space(hub.cache, total - partial_bytes, free=hub.free)
        notify(
            f"Downloading {pinned}: {show_size(total)} into {hub.cache}"
            + (f" ({show_size(partial_bytes)} already present)." if partial_bytes else ".")
        )
    hashed = _fetch_blobs(blobs, pinned, hub, notify, watch)
    for _ in range(_SNAPSHOT_ATTEMPTS - 1):
        try:
            return _download_snapshot(pinned, files, hub), hashed
        except (BrokenDownload, HubUnreachable) as error:
            notify(f"The download was interrupted ({error.why}); resuming.")
    return _download_snapshot(pinned, files, hub), hashed


def _find_complete(pinned: HubAddress, file: HubFile, hub: Hub) -> Path | None:
    """Return the path of a cached file, or None if the file is missing.

    Remove a cached file that has the wrong size, for example after an interrupted copy, because
    huggingface_hub would otherwise use it.
    """
    path = _find_cached(pinned, file.name, hub)
    if path is None or path.stat().st_size == file.size_bytes:
        return path
    remove_with_targets(path)
    return None


def _plan_blob(file: HubFile, pinned: HubAddress, hub: Hub) -> Blob:
    folder = hub.find_folder(pinned.repository)
    sha256 = str(file.sha256)
    return Blob(
        file.name,
        file.size_bytes,
        sha256,
        path=folder / "blobs" / sha256,
        lock=hub.cache / ".locks" / folder.name / f"{sha256}.lock",
    )


def _fetch_blobs(
    blobs: list[Blob], pinned: HubAddress, hub: Hub, notify: Callable[[str], None], watch: Watch
) -> set[str]:
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    meter = Meter("Downloading", {blob.name: blob.size_bytes for blob in blobs})
    xet = XetGroup()
    hashed: set[str] = set()

    def fetch(blob: Blob, stop: threading.Event) -> None:
        effects = Effects(
            set_received=lambda num_bytes: meter.set(blob.name, num_bytes),
            add_received=lambda num_bytes: meter.add(blob.name, num_bytes),
            notify=notify,
            stop=stop,
            translate=lambda: translate_hub_errors(pinned, hub.url),
        )
        find = partial(
            find_remote_file,
            pinned,
            blob.name,
            endpoint=hub.endpoint,
            timeout_s=HF_HUB_DOWNLOAD_TIMEOUT,
            xet=xet,
        )
        if fetch_blob(blob, find, effects):
            hashed.add(blob.name)

    run_parallel(fetch, blobs, max_workers=_MAX_WORKERS, tick=lambda: watch(meter.read()))
    return hashed


def _download_snapshot(pinned: HubAddress, files: list[HubFile], hub: Hub) -> Path:
    from huggingface_hub import snapshot_download

    _hide_progress()
    with translate_hub_errors(pinned, hub.url):
        folder = snapshot_download(
            pinned.repository,
            revision=pinned.revision,
            cache_dir=hub.cache,
            endpoint=hub.endpoint,
            allow_patterns=[glob.escape(file.name) for file in files],
        )
    return Path(folder)


def _record_revision(revision: str, commit: str, repository: Path) -> None:
    """Record the commit of a branch or tag in the Hugging Face cache, for offline use."""
    if revision == commit:
        return
    ref = repository / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    write_text(ref, commit)


def _use_cache(
    source: HubAddress,
    hub: Hub,
    options: FetchOptions,
    notify: Callable[[str], None],
    unreachable: HubUnreachable | HubBusy,
) -> Checkpoint:
    """Return the checkpoint in the cache.

    Raise `unreachable` if the checkpoint is not cached. Raise `SourceError` if the cached copy is
    incomplete or not valid, or `UnsafeCheckpoint` if the options do not allow it.
    """
    config = find_cached_config(source, hub)
    if config is None:
        raise unreachable from None
    try:
        checkpoint = _inspect(config.parent, source, options)
    except UnsafeCheckpoint:
        raise
    except SourceError as error:
        raise SourceError(
            f"{unreachable.what} The checkpoint in the Hugging Face cache cannot be used instead.",
            why=f"{unreachable.why}; the check of the cached checkpoint failed: {error.what} "
            f"{error.why}",
            next_step=unreachable.next_step,
        ) from None
    notify(f"{unreachable.what} Using the copy in the cache, commit {checkpoint.revision}.")
    return checkpoint


def _hide_progress() -> None:
    """Hide huggingface_hub's progress bars, because `Watch` already shows the progress."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

    if not are_progress_bars_disabled():
        disable_progress_bars()
