"""Compare and update the copies of tllm's runtime package in a model repository.

Each Python model has its own copy in its version folder, so that the repository runs without tllm.
A repository therefore keeps the runtime of the version that rendered it until it is updated.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.paths import link_files, write_aside, write_text
from trtllm_serve_cli.repository.model.model_repository import OpenRepository
from trtllm_serve_cli.repository.model.store import MANIFEST, command_to_import_again

# The name of the copies, so that `python3 -m tllm_runtime.worker` runs a copy.
RUNTIME_PACKAGE = "tllm_runtime"
# The field of the manifest with the fingerprint of the runtime that was copied.
FINGERPRINT = "runtime"

_ENTRY_POINT = re.compile(rf"\b{RUNTIME_PACKAGE}\.models\.(\w+)")


@dataclass(frozen=True, slots=True)
class RuntimeUpdate:
    """The plan for updating the runtime in a repository.

    - `folders`: the copies to write. A copy that equals this version's runtime is not included.
    - `sources`: text of each file in the runtime, keyed by its path in the folder.
    """

    repository: OpenRepository
    folders: tuple[Path, ...]
    sources: Mapping[str, str]


def read_runtime(kind: str) -> dict[str, str]:
    """Return the text of each Python file in the runtime package, keyed by relative path.

    If the engine kind has a `runtime_folder`, the folder's files are added under `engines/KIND`.
    """
    sources = _read_package()
    if folder := find_kind(kind).runtime_folder:
        engine = _read_sources(folder)
        sources |= {f"engines/{kind}/{name}": text for name, text in engine.items()}
    return sources


def fingerprint_runtime(sources: Mapping[str, str]) -> str:
    """Return a hash of the files in a runtime."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def has_other_runtime(repository: OpenRepository) -> bool:
    """Return whether another version of tllm wrote the repository's runtime.

    The manifest records which runtime was written, so changes that users make in the copies do not
    count.
    """
    if not any(_find_copies(repository)):
        return False
    recorded = repository.manifest.get(FINGERPRINT)
    return bool(recorded != fingerprint_runtime(read_runtime(repository.kind)))


def plan_runtime_update(repository: OpenRepository) -> RuntimeUpdate:
    """Plan the replacement of all copies that differ from this version's runtime.

    Raise `RepositoryError` if the repository has no copy of the runtime, or if this version's
    runtime has no module for one of its models.
    """
    sources = read_runtime(repository.kind)
    copies = dict(_find_copies(repository))
    if not copies:
        raise RepositoryError(
            f"The repository {repository.path} does not contain a copy of tllm's runtime.",
            why="its models run in other backends of Triton"
            if repository.has_manifest
            else "tllm did not render it",
            next_step="serve it without an update",
        )
    for folder, entry_point in copies.items():
        if f"models/{entry_point}.py" not in sources:
            again = command_to_import_again(repository.path, repository.name)
            raise RepositoryError(
                f"The runtime of {repository.name} cannot be updated.",
                why="the runtime of this version of tllm has no module for "
                f"{folder.parent / 'model.py'}",
                next_step=f"import the model again with `{again}`",
            )
    outdated = (folder for folder in copies if _read_sources(folder) != sources)
    return RuntimeUpdate(repository, tuple(outdated), sources)


def update_runtime(update: RuntimeUpdate) -> None:
    """Write the copies of the runtime, and record their fingerprint in the manifest.

    All models have the same runtime at any time, because a new repository atomically replaces the
    old one. Raise `RepositoryError` if it is or contains a mount point, or `OSError` if a file
    cannot be written.
    """
    repository = update.repository.path
    fingerprint = fingerprint_runtime(update.sources)
    manifest = json.dumps({**update.repository.manifest, FINGERPRINT: fingerprint}, indent=2) + "\n"
    if not update.folders:
        write_text(repository / MANIFEST, manifest)
        return
    try:
        _replace_repository(update, manifest)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise RepositoryError(
            f"The runtime of {update.repository.name} was not updated.",
            why=f"{error.filename} is in another file system than {repository.resolve().parent}, "
            "or in a container image, so the repository cannot be replaced as a whole",
            next_step="update the repository where it is a folder without mount points, for "
            "example outside of the container",
        ) from error


def _replace_repository(update: RuntimeUpdate, manifest: str) -> None:
    repository = update.repository.path
    with write_aside(repository) as aside:
        link_files(repository, aside)
        for folder in update.folders:
            copy = aside / folder.relative_to(repository)
            if copy.is_symlink():
                copy.unlink()
            elif copy.exists():
                shutil.rmtree(copy)
            write_runtime(update.sources, copy)
        write_text(aside / MANIFEST, manifest)


def write_runtime(sources: Mapping[str, str], folder: Path) -> None:
    """Write the runtime's files to an empty folder."""
    for relative, text in sources.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _find_copies(repository: OpenRepository) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder of each copy and the module in `models` that its `model.py` imports.

    The folder may be missing, or the module may be unknown. Models with neither are skipped.
    """
    if not repository.has_manifest:
        return
    for model in repository.texts:
        for code in sorted((repository.path / model).glob("*/model.py")):
            folder = code.parent / RUNTIME_PACKAGE
            found = _ENTRY_POINT.search(code.read_text(encoding="utf-8", errors="replace"))
            if found or folder.exists():
                yield folder, found and found[1]


def _read_package() -> dict[str, str]:
    return _read_sources(Path(str(resources.files("trtllm_serve_cli.runtime"))))


def _read_sources(folder: Path) -> dict[str, str]:
    # A damaged copy may not be valid UTF-8.
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="surrogateescape")
        for path in sorted(folder.rglob("*.py"))
    }
