"""Download large files into the Hugging Face cache with resumable transfers.

Since version 1.20, huggingface_hub deletes the partial file when a download is stopped, and it
cannot resume a download after the process was killed.

Like older releases of huggingface_hub, this module therefore writes to `blobs/<etag>.incomplete`.
It hashes bytes as they arrive, so only bytes from earlier runs have to be read back from disk. The
cache lock prevents other programs from writing the same file.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trtllm_serve_cli.sources.hub.bytes import OpenAt, RemoteFile
from trtllm_serve_cli.sources.hub.errors import BrokenDownload, HubBusy, HubUnreachable
from trtllm_serve_cli.sources.parallel import Stopped
from trtllm_serve_cli.sources.verify import explain_wrong_content

_CHUNK_BYTES = 1 << 20
_FIRST_WAIT_S = 1.0
_MAX_FAILURES = 6  # Maximum number of consecutive failures. Received bytes restart the count.
_LONGEST_WAIT_S = 300.0
_LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Blob:
    """A large file in the Hugging Face cache.

    `path` is the path of the complete file, and `lock` is the path of its lock file.
    """

    name: str
    size_bytes: int
    sha256: str
    path: Path
    lock: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.path.name}.incomplete")

    def find_partial_bytes(self) -> int:
        """Return the partial file's size in bytes, or 0 if the file does not exist."""
        return self.partial.stat().st_size if self.partial.exists() else 0


@dataclass(frozen=True, slots=True)
class Effects:
    """The callbacks and the stop event of a transfer.

    `set_received(n)` reports that n bytes are already present. `add_received(n)` reports that n
    more bytes were received. `notify(text)` shows a message to the user. If `stop` is set, the
    transfer raises `Stopped`. The context manager `translate()` translates huggingface_hub's errors
    into `SourceError`s.
    """

    set_received: Callable[[int], None]
    add_received: Callable[[int], None]
    notify: Callable[[str], None]
    stop: threading.Event
    translate: Callable[[], AbstractContextManager[None]]


def fetch_blob(blob: Blob, find: Callable[[], RemoteFile], effects: Effects) -> bool:
    """Download `blob` and return whether its SHA-256 was verified during the download.

    Return False if the file already exists. Also return False if the hub's ETag is not the SHA-256,
    because only huggingface_hub can download the file in this case. Raise `SourceError` if the
    download fails or does not match the published checksum. Raise `Stopped` if `effects.stop` is
    set. The partial file is kept after `Stopped` and after network failures.
    """
    with effects.translate():
        remote = find()
    if remote.etag != blob.sha256:
        return False
    with effects.translate():
        blob.path.parent.mkdir(parents=True, exist_ok=True)
        blob.lock.parent.mkdir(parents=True, exist_ok=True)
    with _locked(blob.lock, effects.stop):
        if blob.path.exists():
            effects.set_received(blob.size_bytes)
            return False
        with effects.translate(), blob.partial.open("a+b", buffering=_CHUNK_BYTES) as file:
            partial = _resume(file, blob, effects)
            _download_rest(partial, blob, list(remote.openers), effects)
        if partial.digest.hexdigest() != blob.sha256:
            blob.partial.unlink()
            raise explain_wrong_content([blob.name])
        blob.partial.replace(blob.path)
    return True


class _PartialFile:
    """A partial file and the hash of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.restart()

    def restart(self) -> None:
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def count(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.num_bytes += len(chunk)


def _resume(file: BinaryIO, blob: Blob, effects: Effects) -> _PartialFile:
    partial = _PartialFile(file)
    if blob.find_partial_bytes() > blob.size_bytes:
        file.truncate(0)
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        _check_not_stopped(effects.stop)
        partial.count(chunk)
    effects.set_received(partial.num_bytes)
    return partial


def _download_rest(
    partial: _PartialFile, blob: Blob, openers: list[OpenAt], effects: Effects
) -> None:
    """Download the missing bytes. If an opener makes no progress, use the next opener.

    Raise the error of the last attempt after `_MAX_FAILURES` consecutive failures, or if the next
    attempt would have to wait longer than `_LONGEST_WAIT_S`.
    """
    failures = 0
    while partial.num_bytes < blob.size_bytes:
        before = partial.num_bytes
        try:
            with effects.translate():
                _append(partial, blob, openers[0], effects)
        except (BrokenDownload, HubUnreachable, HubBusy) as error:
            failures = 1 if partial.num_bytes > before else failures + 1
            wait_s = error.wait_s or _FIRST_WAIT_S * 2 ** (failures - 1)
            if failures == _MAX_FAILURES or wait_s > _LONGEST_WAIT_S:
                raise
            effects.notify(f"{blob.name}: {error.what} {error.why}. Resuming in {wait_s:.0f} s.")
            if partial.num_bytes == before and len(openers) > 1:
                openers.pop(0)
            if effects.stop.wait(wait_s):
                raise Stopped from error


def _append(partial: _PartialFile, blob: Blob, open_at: OpenAt, effects: Effects) -> None:
    with open_at(partial.num_bytes) as (start, chunks):
        if start != partial.num_bytes:
            # Discard the received bytes, because the server ignored the range and is sending the
            # complete file.
            partial.file.truncate(0)
            partial.restart()
            effects.set_received(0)
        for chunk in chunks:
            _check_not_stopped(effects.stop)
            partial.file.write(chunk)
            partial.count(chunk)
            effects.add_received(len(chunk))
            if partial.num_bytes > blob.size_bytes:
                return
    if partial.num_bytes < blob.size_bytes:
        raise BrokenDownload(
            f"The download of {blob.name} was interrupted.",
            why=f"{partial.num_bytes} of {blob.size_bytes} bytes were received",
            next_step="run the same command again to resume the download",
        )


def _check_not_stopped(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped


@contextmanager
def _locked(path: Path, stop: threading.Event) -> Iterator[None]:
    """Hold the lock that huggingface_hub holds while it writes the same blob."""
    import filelock

    lock = filelock.FileLock(path, mode=0o664)
    while not lock.is_locked:
        _check_not_stopped(stop)
        try:
            lock.acquire(timeout=_LOCK_POLL_S)
        except filelock.Timeout:
            continue
        except NotImplementedError:
            # Continue without a lock if the file system does not support locks. The checksum
            # detects corruption by concurrent writers.
            break
    try:
        yield
    finally:
        lock.release()
