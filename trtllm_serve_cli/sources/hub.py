"""Fetches a checkpoint from the hub into the hub's own cache, pinned to a commit.

Nothing large is downloaded before the listing and the small files have shown that the checkpoint
has safetensors weights, brings no code and fits on the disk. A cut connection is resumed where it
broke; a killed run keeps every file that was complete. huggingface_hub compares sizes only, so the
checksums are held against the hub's afterwards. Without a network, a complete copy in the cache
serves.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli import __version__
from trtllm_serve_cli.errors import SourceError, UnsafeCheckpoint
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import (
    FILES_THAT_NAME_CODE,
    WEIGHTS_INDEX,
    Checkpoint,
    FetchOptions,
    check_has_config,
    check_runs_no_code,
    choose_weights,
    inspect_hf_directory,
    read_index,
)
from trtllm_serve_cli.sources.hub_errors import BrokenDownload, HubUnreachable, translate_hub_errors
from trtllm_serve_cli.sources.source import HubSource
from trtllm_serve_cli.sources.space import check_space, find_free_bytes, show_size
from trtllm_serve_cli.sources.verify import verify_files

_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_TIMEOUT_S = 30.0
# Releases of huggingface_hub before 2.0 give up at the first cut, and resume in the next call.
_DOWNLOAD_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Hub:
    """Which hub, and where its cache lies; `endpoint` is `None` for the public one."""

    endpoint: str | None
    cache: Path
    free: Callable[[Path], int] = find_free_bytes

    @property
    def url(self) -> str:
        return self.endpoint or "https://huggingface.co"

    def find_folder(self, repository: str) -> Path:
        """Where the cache keeps that repository; the layout is documented and stable."""
        return self.cache / f"models--{repository.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `sha256` is known for the large ones."""

    name: str
    size_bytes: int
    sha256: str | None


def find_hub(environ: Mapping[str, str] = os.environ) -> Hub:
    """The hub and the cache that the hub's own variables name (HF_ENDPOINT, HF_HOME …)."""
    caches = Path(environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(environ.get("HF_HOME") or caches / "huggingface")
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or None
    return Hub(endpoint, cache.expanduser().absolute())


def find_cached_config(source: HubSource, hub: Hub) -> Path | None:
    """Where the cache has config.json of that revision, if it does."""
    return _find_cached(source, "config.json", hub)


def fetch_small_file(source: HubSource, name: str, hub: Hub) -> Path | None:
    """Where the cache has that file now; `None` if the repository does not have it.

    Without a network, the copy in the cache serves. A branch that the cache knows already stays at
    its commit there, since the weights of a newer one may never come.
    """
    try:
        commit, files = _list_repository(source, hub)
    except HubUnreachable:
        if find_cached_config(source, hub) is None:
            raise
        return _find_cached(source, name, hub)
    if name not in files:
        return None
    path = _download_one(HubSource(source.repository, commit), name, hub)
    if find_cached_config(source, hub) is None:
        _remember_revision(source.revision or "main", commit, hub.find_folder(source.repository))
    return path


def _find_cached(source: HubSource, name: str, hub: Hub) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        source.repository, name, cache_dir=hub.cache, revision=source.revision
    )
    return Path(found) if isinstance(found, str) else None


def fetch_from_hub(
    source: HubSource,
    *,
    hub: Hub,
    home: Home,
    options: FetchOptions,
    say: Callable[[str], None],
) -> Checkpoint:
    """The checkpoint of `source`, in the hub's cache; `Checkpoint.source` names the commit."""
    try:
        commit, files = _list_repository(source, hub)
    except HubUnreachable as error:
        return _use_cache(source, hub, options, say, error)
    pinned = HubSource(source.repository, commit)
    chosen = _choose_files(pinned, files, hub, options)
    folder = _download(pinned, chosen, hub, say)
    ledger = home.checkpoints / f"hf--{source.repository.replace('/', '--')}" / f"{commit}.json"
    checksums = {file.name: file.sha256 for file in chosen if file.sha256}
    verify_files(folder, checksums, ledger=ledger, say=say)
    _remember_revision(source.revision or "main", commit, hub.find_folder(source.repository))
    return _inspect(folder, source, options)


def _inspect(snapshot: Path, source: HubSource, options: FetchOptions) -> Checkpoint:
    pinned = HubSource(source.repository, snapshot.name)
    return inspect_hf_directory(
        snapshot, source=str(pinned), revision=snapshot.name, options=options
    )


def _list_repository(source: HubSource, hub: Hub) -> tuple[str, dict[str, HubFile]]:
    """The commit that the revision stands for now, and the files at the top of its tree."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, library_name="tllm", library_version=__version__)
    with translate_hub_errors(source, hub.url):
        info = api.model_info(
            source.repository, revision=source.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
        for each in info.siblings or ()
    ]
    return str(info.sha), {file.name: file for file in files if "/" not in file.name}


def _choose_files(
    pinned: HubSource, files: Mapping[str, HubFile], hub: Hub, options: FetchOptions
) -> list[HubFile]:
    """Weights in one form, and the small files; refuses before anything large is downloaded."""
    check_has_config(str(pinned), files)
    for name in FILES_THAT_NAME_CODE:
        if name in files:
            folder = _download_one(pinned, name, hub).parent
    if not options.trust_remote_code:
        check_runs_no_code(folder)
    weights = choose_weights(
        str(pinned), files, lambda: read_index(_download_one(pinned, WEIGHTS_INDEX, hub)), options
    )
    wanted = (*_SMALL_FILES, ".py") if options.trust_remote_code else _SMALL_FILES
    return [file for name, file in files.items() if name in weights or name.endswith(wanted)]


def _download_one(pinned: HubSource, name: str, hub: Hub) -> Path:
    from huggingface_hub import hf_hub_download

    _hide_progress_unless_watched()
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
    pinned: HubSource, files: list[HubFile], hub: Hub, say: Callable[[str], None]
) -> Path:
    """The snapshot folder in the hub's cache, with at least `files` in it."""
    missing = sum(file.size_bytes for file in files if not _find_cached(pinned, file.name, hub))
    if missing:
        check_space(hub.cache, missing, free=hub.free)
        say(f"Downloading {pinned}: {show_size(missing)} into {hub.cache}.")
    _hide_progress_unless_watched()
    for _ in range(_DOWNLOAD_ATTEMPTS - 1):
        try:
            return _download_snapshot(pinned, files, hub)
        except (BrokenDownload, HubUnreachable) as error:
            say(f"The download broke off ({error.why}); going on.")
    return _download_snapshot(pinned, files, hub)


def _download_snapshot(pinned: HubSource, files: list[HubFile], hub: Hub) -> Path:
    from huggingface_hub import snapshot_download

    with translate_hub_errors(pinned, hub.url):
        folder = snapshot_download(
            pinned.repository,
            revision=pinned.revision,
            cache_dir=hub.cache,
            endpoint=hub.endpoint,
            allow_patterns=[glob.escape(file.name) for file in files],
        )
    return Path(folder)


def _remember_revision(revision: str, commit: str, repository: Path) -> None:
    """Notes in the hub's cache what a branch or tag stood for, so that it is found offline."""
    if revision == commit:
        return
    ref = repository / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    aside = ref.with_name(f"{ref.name}.aside")
    aside.write_text(commit, encoding="utf-8")
    aside.replace(ref)


def _use_cache(
    source: HubSource,
    hub: Hub,
    options: FetchOptions,
    say: Callable[[str], None],
    unreachable: HubUnreachable,
) -> Checkpoint:
    """What an earlier run left in the cache, if it is whole; raises `unreachable` otherwise."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            source.repository,
            revision=source.revision,
            cache_dir=hub.cache,
            local_files_only=True,
        )
        checkpoint = _inspect(Path(folder), source, options)
    except UnsafeCheckpoint:
        raise
    except (LocalEntryNotFoundError, SourceError):
        raise unreachable from None
    say(f"{unreachable.what} Using the copy in the cache, commit {checkpoint.revision}.")
    return checkpoint


def _hide_progress_unless_watched() -> None:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

    if not sys.stderr.isatty() and not are_progress_bars_disabled():
        disable_progress_bars()
