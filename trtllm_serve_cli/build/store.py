"""Place, list and lock engines in the engine store, which contains one engine per fingerprint.

    NAME-FINGERPRINT/            an engine; NAME is the model that it was first built for
    .NAME-FINGERPRINT.partial/   an unfinished build
    .locks/FINGERPRINT.lock      held while the engine is built or deleted, or while a reference to
                                 it is added
    .used-by/                    links to the repositories that use engines from the store

Models whose plans have the same fingerprint share an engine. Engines in other folders
(`--engine-dir`) are not part of the store.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.engine import (
    ENGINE_FILE,
    BuildRecord,
    Engine,
    find_engine,
    read_build_record,
    read_engine,
)
from trtllm_serve_cli.build.partial_build import list_partial_builds
from trtllm_serve_cli.errors import BuildFailed
from trtllm_serve_cli.paths import Home, find_size

_LOCKS = ".locks"


@dataclass(frozen=True, slots=True)
class StoredEngine:
    """An engine folder in the engine store.

    `engine` is `None` if the engine.json in the folder cannot be read. `build_record` is `None` if
    engine.json does not contain a valid record.
    """

    path: Path
    num_bytes: int
    engine: Engine | None
    build_record: BuildRecord | None


def place_engine(plan: BuildPlan, store: Path) -> BuildPlan:
    """Return `plan` with an engine folder in `store`.

    Prefer the folder of an existing engine. Otherwise, use the folder of an unfinished build or, if
    the store contains neither, a new folder.
    """
    fingerprint = plan.fingerprint
    finished = (
        path for path in sorted(store.glob(f"*-{fingerprint}")) if _holds_engine(fingerprint, path)
    )
    unfinished = (
        build.engine_dir for build in list_partial_builds(store) if build.fingerprint == fingerprint
    )
    engine_dir = (
        next(finished, None) or next(unfinished, None) or store / f"{plan.model_name}-{fingerprint}"
    )
    return dataclasses.replace(plan, engine_dir=engine_dir)


def list_engines(
    store: Path, *, read: Callable[[Path], Engine] = read_engine
) -> list[StoredEngine]:
    """Return all engines in the store, sorted by folder name.

    `read` reads one engine and must raise `BuildFailed` if the engine is broken.
    """
    folders = sorted(file.parent for file in store.glob(f"*/{ENGINE_FILE}"))
    return [_read(path, read) for path in folders if not path.name.startswith(".")]


def is_store(folder: Path) -> bool:
    """Return whether the folder is the engine store of this or another `TLLM_HOME`."""
    return (folder / _LOCKS).is_dir()


def lock_of(home: Home, engine_dir: Path, fingerprint: str) -> Path:
    """Return an engine's lock file.

    The lock file for an engine in the store is also in the store, because several TLLM_HOMEs can
    share a store. For any other engine, the lock file is in this TLLM_HOME.
    """
    if engine_dir.parent == home.engines:
        return home.engines / _LOCKS / f"{fingerprint}.lock"
    place = hashlib.sha256(str(engine_dir).encode()).hexdigest()[:16]
    return home.locks / f"engine-dir-{place}.lock"


def _holds_engine(fingerprint: str, path: Path) -> bool:
    try:
        return find_engine(path, fingerprint) is not None
    except BuildFailed:
        return True  # A broken engine is rebuilt in its existing folder.


def _read(path: Path, read: Callable[[Path], Engine]) -> StoredEngine:
    try:
        engine: Engine | None = read(path)
    except BuildFailed:
        engine = None
    return StoredEngine(path, find_size(path), engine, read_build_record(path))
