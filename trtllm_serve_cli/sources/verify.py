"""Holds downloaded files against their SHA-256, once.

Hashing a large model takes minutes, so what passed is written down with its size and time of
change, and hashed again only when one of them differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_serve_cli.errors import SourceError

_CHUNK_BYTES = 1 << 20


def verify_files(
    folder: Path, sha256: Mapping[str, str], *, ledger: Path, say: Callable[[str], None]
) -> None:
    """Raises `SourceError` naming the files in `folder` whose SHA-256 differs, and removes them.

    `ledger` is the file where what passed is written down.
    """
    passed = _read_ledger(ledger)
    stamps = {name: _stamp(folder / name, sha256[name]) for name in sorted(sha256)}
    unseen = [name for name, stamp in stamps.items() if passed.get(name) != stamp]
    if not unseen:
        return
    say(f"Verifying the checksum of {len(unseen)} files.")
    wrong = [name for name in unseen if _hash(folder / name) != sha256[name]]
    for name in wrong:
        _remove_with_targets(folder / name)
    _write_ledger(ledger, {name: stamps[name] for name in stamps if name not in wrong})
    if wrong:
        raise SourceError(
            f"{', '.join(wrong)} did not arrive as published.",
            why="the SHA-256 differs from the one that the hub gives; the wrong data is removed",
            next_step="run the same command again to fetch what is missing",
        )


def _stamp(path: Path, sha256: str) -> list[str | int]:
    stat = path.stat()
    return [sha256, stat.st_size, stat.st_mtime_ns]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _remove_with_targets(path: Path) -> None:
    """Removes a file of the hub's cache: its links and the blob that they end in."""
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
    aside = ledger.with_suffix(".aside")
    aside.write_text(json.dumps(passed), encoding="utf-8")
    aside.replace(ledger)
