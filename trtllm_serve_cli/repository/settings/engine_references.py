"""Find the engines in the store that are in use, and remove unused engines.

An engine is in use if a repository's manifest contains the engine's path, either as the engine or
as a parameter, for example `draft_model_dir`. If the manifest cannot be read, the paths in the
Triton model configurations are used instead. The store contains a symbolic link to each repository
that uses one of the store's engines, because repositories may be outside this TLLM_HOME. Broken
links to deleted repositories are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from trtllm_serve_cli.build.partial_build import PartialBuild, list_partial_builds
from trtllm_serve_cli.build.store import StoredEngine, is_store, list_engines, lock_of
from trtllm_serve_cli.paths import Home, find_size, remove_folder, try_lock
from trtllm_serve_cli.repository.model.store import MANIFEST

_LINKS = ".used-by"


@dataclass(frozen=True, slots=True)
class Removal:
    """The model repositories, engines and partial builds to delete."""

    repositories: tuple[Path, ...]
    engines: tuple[StoredEngine, ...]
    unfinished: tuple[PartialBuild, ...]

    def sizes(self) -> dict[Path, int]:
        """Return the size in bytes of each folder to delete."""
        sizes = {path: find_size(path) for path in self.repositories}
        sizes |= {engine.path: engine.num_bytes for engine in self.engines}
        return sizes | {build.path: find_size(build.path) for build in self.unfinished}


def record_references(home: Home, repository: Path) -> None:
    """Create a link to `repository` in each store that contains an engine of the repository."""
    mark = hashlib.sha256(str(repository).encode()).hexdigest()[:16]
    for store in {path.parent for path in _paths_in(repository)}:
        if store == home.engines or is_store(store):
            link = store / _LINKS / mark
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(repository, target_is_directory=True)


def find_users(home: Home, *, without: Collection[Path] = ()) -> dict[Path, list[Path]]:
    """Return the repositories that use each engine, keyed by engine folder.

    The repositories in `without` are ignored.
    """
    users: dict[Path, list[Path]] = {}
    for repository in sorted(_repositories(home) - set(without)):
        for engine in engines_of(repository, home.engines):
            users.setdefault(engine, []).append(repository)
    return users


def plan_removal(home: Home, repositories: Iterable[Path], *, unused: bool) -> Removal:
    """Plan the removal of models, together with their partial builds and engines.

    The plan keeps engines that other models use. If `unused` is set, the plan also removes all
    other unused engines and all partial builds.
    """
    paths = tuple(repositories)
    names = {path.name for path in paths}
    users = find_users(home, without=paths)
    candidates = {engine for path in paths for engine in engines_of(path, home.engines)}
    return Removal(
        paths,
        tuple(
            each
            for each in list_engines(home.engines)
            if each.path not in users and (unused or each.path in candidates)
        ),
        tuple(
            build
            for build in list_partial_builds(home.engines)
            if unused or build.model_name in names
        ),
    )


def remove(home: Home, removal: Removal) -> list[Path]:
    """Delete the folders that `removal` lists. Ignore folders that have already been deleted.

    Keep an engine or a partial build if another process has started to use it since the removal was
    planned. Return the paths of the kept engines and builds.
    """
    for path in removal.repositories:
        with contextlib.suppress(FileNotFoundError):
            remove_folder(path)
    for link in (home.engines / _LINKS).glob("*"):
        if not link.exists():
            link.unlink(missing_ok=True)
    needed = []
    for each in removal.engines:
        mark = each.engine.fingerprint if each.engine else each.path.name.rpartition("-")[2]
        if not _remove_unused(home, each.path, each.path, mark):
            needed.append(each.path)
    for build in removal.unfinished:
        if not _remove_unused(home, build.path, build.engine_dir, build.fingerprint):
            needed.append(build.path)
    return needed


def _remove_unused(home: Home, path: Path, engine_dir: Path, fingerprint: str) -> bool:
    with try_lock(lock_of(home, engine_dir, fingerprint)) as is_locked:
        if not is_locked or path in find_users(home):
            return False
        with contextlib.suppress(FileNotFoundError):
            remove_folder(path)
        return True


def _repositories(home: Home) -> set[Path]:
    """Return the repositories in this TLLM_HOME and the repositories that the store links to."""
    local = {file.parent for file in home.models.glob(f"*/{MANIFEST}")}
    known = {link.readlink() for link in (home.engines / _LINKS).glob("*") if link.is_symlink()}
    return {path for path in local if not path.name.startswith(".")} | known


def engines_of(repository: Path, store: Path) -> set[Path]:
    """Return the folders of the engines in `store` that the repository references."""
    paths = [path for path in _paths_in(repository) if store in path.parents]
    return {store / path.relative_to(store).parts[0] for path in paths}


def _paths_in(repository: Path) -> list[Path]:
    """Return the absolute paths in the repository's manifest.

    If the manifest cannot be read, return the absolute paths in the Triton model configurations.
    Without this fallback, the engines of a repository with a broken manifest would be treated as
    unused.
    """
    try:
        manifest = json.loads((repository / MANIFEST).read_text(encoding="utf-8"))
        parameters = {**manifest.get("parameters", {}), **manifest.get("set", {})}
        named = [str(Path(manifest["engine"]["path"])), *parameters.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        configs = repository.glob("*/config.pbtxt")
        named = [text for config in configs for text in _read_strings(config)]
    return [
        Path(value).resolve() for value in named if isinstance(value, str) and value.startswith("/")
    ]


def _read_strings(config: Path) -> list[str]:
    """Return all quoted strings in a Triton model configuration, or [] if it cannot be read."""
    try:
        return re.findall(r'"([^"\n]*)"', config.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
