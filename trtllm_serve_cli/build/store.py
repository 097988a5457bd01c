"""The engine store: a folder with one engine for each fingerprint of a plan.

    NAME-FINGERPRINT/            an engine; NAME is the model that it was first built for
    .NAME-FINGERPRINT.partial/   an unfinished build
    .locks/FINGERPRINT.lock      held while the engine is built or a reference to it is added
    .used-by/                    links to the repositories that use engines of the store

Models with the same plan share an engine, whatever their names. Engines in other folders belong to
the user.
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
    """An engine folder of the store; `engine` is `None` if its engine.json cannot be read."""

    path: Path
    num_bytes: int
    engine: Engine | None
    build_record: BuildRecord | None


def place_engine(plan: BuildPlan, store: Path) -> BuildPlan:
    """Return `plan` with an engine folder in `store`.

    Prefer the folder of an existing engine, then that of an unfinished build, then a new one.
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
    """Return all engines of the store by name; `read` raises `BuildFailed` for a broken one."""
    folders = sorted(file.parent for file in store.glob(f"*/{ENGINE_FILE}"))
    return [_read(path, read) for path in folders if not path.name.startswith(".")]


def is_store(folder: Path) -> bool:
    """Return whether the folder is the engine store of any home."""
    return (folder / _LOCKS).is_dir()


def lock_of(home: Home, engine_dir: Path, fingerprint: str) -> Path:
    """Return the lock file of an engine, which all homes that share its store have in common."""
    if engine_dir.parent == home.engines:
        return home.engines / _LOCKS / f"{fingerprint}.lock"
    place = hashlib.sha256(str(engine_dir).encode()).hexdigest()[:16]
    return home.locks / f"engine-dir-{place}.lock"


def _holds_engine(fingerprint: str, path: Path) -> bool:
    try:
        return find_engine(path, fingerprint) is not None
    except BuildFailed:
        return True  # A broken engine is rebuilt in its folder.


def _read(path: Path, read: Callable[[Path], Engine]) -> StoredEngine:
    try:
        engine: Engine | None = read(path)
    except BuildFailed:
        engine = None
    return StoredEngine(path, find_size(path), engine, read_build_record(path))
