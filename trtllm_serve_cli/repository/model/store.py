"""Find and read the model repositories in TLLM_HOME."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.catalog.entries import find_alias, find_near_aliases
from trtllm_serve_cli.errors import RepositoryError, UnknownModel, explain_invalid_file
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.model.file_changes import complete_changes

MANIFEST = "tllm.json"


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """An imported model, as described by its repository's manifest.

    - `path`: repository folder.
    - `created_at`: time of the import, in seconds since the epoch.
    - `models`: names of the repository's Triton models.
    - `declaration`: sections of a `tllm.yaml` that describes the import.
    - `preserved`: values that `tllm set` has written, including values kept from an earlier import.
    """

    name: str
    path: Path
    layout: str
    engine_kind: str
    engine_path: Path
    source: str
    fingerprint: str
    created_at: int
    models: tuple[str, ...]
    declaration: Mapping[str, Any] = field(default_factory=dict)
    preserved: Mapping[str, str] = field(default_factory=dict)

    @property
    def launch(self) -> Mapping[str, Any]:
        """The launch options in the import's declaration."""
        return dict(self.declaration.get("launch", {}))

    @property
    def text_model(self) -> str:
        """The Triton model that clients send text to."""
        return self.name if self.name in self.models else self.models[0]


def read_manifest(directory: Path) -> ImportedModel:
    """Return the model that the manifest in `directory` describes.

    Raise `RepositoryError` if the manifest is missing, not valid or not readable.
    """
    path = directory / MANIFEST
    try:
        complete_changes(directory)
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        engine = manifest["engine"]
        return ImportedModel(
            name=manifest["name"],
            path=directory,
            layout=manifest.get("layout", "inflight"),
            engine_kind=engine["kind"],
            engine_path=Path(engine["path"]),
            source=engine["source"],
            fingerprint=engine["fingerprint"],
            created_at=manifest["created_at"],
            models=tuple(manifest["models"]),
            declaration=manifest.get("declaration", {}),
            preserved=manifest.get("set", {}),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError) as error:
        name = shlex.quote(directory.name)
        if is_imported(directory, directory.name):
            options, removal = f"-m {name}", f"delete it with `tllm remove {name}`"
        else:
            options, removal = f"-m NAME --repo {shlex.quote(str(directory))}", "delete the folder"
        is_missing = isinstance(error, OSError)
        raise RepositoryError(
            f"{directory} is not a tllm model repository."
            if is_missing
            else f"The model repository {directory} is damaged.",
            why=explain_invalid_file(f"{MANIFEST} in this folder", error),
            next_step=f"import the model again with `tllm import {options} -s SOURCE --force`, or "
            f"{removal}",
        ) from error
    except OSError as error:
        raise RepositoryError(
            f"{directory} cannot be read.",
            why=error.strerror or str(error),
            next_step="check the disk, then check the permissions with `ls -l "
            f"{shlex.quote(str(path))}`",
        ) from error


def list_models(
    home: Home, *, on_broken: Callable[[str, RepositoryError], None] | None = None
) -> list[ImportedModel]:
    """Return all imported models, sorted by name. Folders without a manifest are ignored.

    Raise `RepositoryError` if a manifest cannot be read. If `on_broken` is set, call it with the
    model's name and the error instead.
    """
    models = []
    for name in list_names(home):
        try:
            models.append(read_manifest(home.models / name))
        except RepositoryError as error:
            if on_broken is None:
                raise
            on_broken(name, error)
    return models


def find_model(home: Home, name: str) -> ImportedModel | None:
    """Return the imported model named `name`, or None if no such model exists.

    Raise `RepositoryError` if the model's manifest cannot be read.
    """
    directory = home.models / name
    return read_manifest(directory) if (directory / MANIFEST).exists() else None


def load_model(home: Home, name: str | None) -> ImportedModel:
    """Return the imported model named `name`. If `name` is None, return the only model.

    Raise `UnknownModel` if no such model exists, or if `name` is None and several models exist.
    Raise `RepositoryError` if the model's manifest cannot be read.
    """
    return read_manifest(home.models / find_name(home, name))


def find_name(home: Home, name: str | None) -> str:
    """Return the name of an imported model: `name`, or the only model if `name` is None.

    Raise `UnknownModel` if no such model exists, or if `name` is None and several models exist. The
    function does not read the manifest, so `tllm remove` can delete a model with a broken manifest.
    """
    known = list_names(home)
    if name is None:
        if len(known) == 1:
            return known[0]
        if not known:
            raise UnknownModel(
                "No model has been imported yet.", next_step="run `tllm import -m demo`"
            )
        raise UnknownModel(
            f"{len(known)} models have been imported: {', '.join(known)}.",
            next_step="choose a model with -m NAME",
        )
    if name in known:
        return name
    raise unknown_model(home, name)


def unknown_model(home: Home, name: str) -> UnknownModel:
    """Return the error for an unknown model name.

    If an imported model or a catalog alias has a similar name, the next step contains that name.
    """
    is_alias = find_alias(name) is not None
    near = difflib.get_close_matches(name, list_names(home), n=3)
    aliases = [name] if is_alias else find_near_aliases(name, limit=3)
    if near and not is_alias:
        next_step = (
            f"run the command again with {near[0]}, or list the imported models with `tllm list`"
        )
    elif aliases:
        next_step = (
            f"run `tllm import -m {aliases[0]}`, or list the imported models with `tllm list`"
        )
    else:
        next_step = (
            "list the imported models with `tllm list`, or the models in the catalog with `tllm "
            "list --catalog`; import other models with `tllm import -m NAME -s SOURCE`"
        )
    similar = near or [each for each in aliases if not is_alias]
    return UnknownModel(
        f"No model named {name!r} has been imported.",
        why=f"models with similar names: {', '.join(similar)}" if similar else "",
        next_step=next_step,
    )


def is_imported(path: Path, name: str) -> bool:
    """Return whether `path` is the repository path of the model `name` in TLLM_HOME."""
    return path == find_home().models / name


def target_of(path: Path, name: str) -> str:
    """Return `name` if it selects the repository at `path` in commands, otherwise `--repo PATH`."""
    return name if is_imported(path, name) else f"--repo {shlex.quote(str(path))}"


def command_to_import_again(path: Path, name: str) -> str:
    """Return a shell command that imports the model again and keeps its changed settings."""
    file = shlex.quote(f"{name}.yaml")
    return f"tllm export {target_of(path, name)} > {file} && tllm import -f {file}"


def list_names(home: Home) -> list[str]:
    """Return the names of imported models. Hidden folders are temporary and are ignored."""
    names = [path.parent.name for path in home.models.glob(f"*/{MANIFEST}")]
    return sorted(name for name in names if not name.startswith("."))
