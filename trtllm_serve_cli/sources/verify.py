"""Verify that downloaded files match the published SHA-256 checksums.

Hashing a large model takes minutes, so this module records the size and modification time of each
verified file. A file is hashed again only if one of these values has changed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.paths import write_text
from trtllm_serve_cli.sources.parallel import Stopped, run_parallel
from trtllm_serve_cli.sources.progress import Meter, Watch

_CHUNK_BYTES = 1 << 20
# Maximum number of workers. More workers would not help, because the disk is the bottleneck.
_MAX_WORKERS = 4


def verify_files(
    folder: Path,
    sha256: Mapping[str, str],
    *,
    ledger: Path,
    notify: Callable[[str], None],
    watch: Watch,
    verified: Collection[str] = (),
) -> None:
    """Verify the SHA-256 of files in `folder`.

    Remove files that do not match and raise `SourceError` with their names. Record verified files
    in the `ledger` file, so that they are not verified again. Files in `verified` were hashed
    during the download, so they are recorded without being read again.
    """
    seen = _read_ledger(ledger)
    stamps = {name: _stamp(folder / name, sha256[name]) for name in sorted(sha256)}
    unseen = [name for name, stamp in stamps.items() if seen.get(name) != stamp]
    if not unseen:
        return
    unread = [name for name in unseen if name not in verified]
    wrong = _find_wrong(folder, {name: sha256[name] for name in unread}, notify, watch)
    for name in wrong:
        remove_with_targets(folder / name)
    _write_ledger(ledger, {name: stamps[name] for name in stamps if name not in wrong})
    if wrong:
        raise explain_wrong_content(wrong)


def explain_wrong_content(names: Sequence[str]) -> SourceError:
    """Return the error for files that do not match the published SHA-256."""
    return SourceError(
        f"Checksum verification failed for {', '.join(names)}.",
        why="the SHA-256 checksum of the downloaded data differs from the checksum on the hub, "
        "so tllm has deleted the data",
        next_step="run the same command again to download the data again",
    )


def _find_wrong(
    folder: Path, sha256: Mapping[str, str], notify: Callable[[str], None], watch: Watch
) -> list[str]:
    if not sha256:
        return []
    notify(f"Verifying the checksum of {len(sha256)} file{'' if len(sha256) == 1 else 's'}.")
    meter = Meter("Verifying", {name: (folder / name).stat().st_size for name in sha256})
    found: dict[str, str] = {}

    def hash_one(name: str, stop: threading.Event) -> None:
        digest = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                if stop.is_set():
                    raise Stopped
                digest.update(chunk)
                meter.add(name, len(chunk))
        found[name] = digest.hexdigest()

    run_parallel(hash_one, sha256, max_workers=_MAX_WORKERS, tick=lambda: watch(meter.read()))
    return [name for name in sha256 if found[name] != sha256[name]]


def _stamp(path: Path, sha256: str) -> list[str | int]:
    stat = path.stat()
    return [sha256, stat.st_size, stat.st_mtime_ns]


def remove_with_targets(path: Path) -> None:
    """Remove a file from the Hugging Face cache: its symbolic links and their target."""
    while path.is_symlink():
        target = path.parent / path.readlink()
        path.unlink()
        path = target
    path.unlink(missing_ok=True)


def _read_ledger(ledger: Path) -> dict[str, list[str | int]]:
    try:
        passed = json.loads(ledger.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return passed if isinstance(passed, dict) else {}


def _write_ledger(ledger: Path, passed: Mapping[str, list[str | int]]) -> None:
    ledger.parent.mkdir(parents=True, exist_ok=True)
    write_text(ledger, json.dumps(passed))
