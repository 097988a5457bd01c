"""The model repositories under TLLM_HOME."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.errors import RepositoryError, UnknownModel
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.model.render import MANIFEST


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model repository and what its manifest says; `created_at` is in seconds since the epoch.

    `declaration` is what its import was told, as a `tllm.yaml` has it; `preserved` are parameters
    that `tllm set` changed since.
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
        """How it wants to be started, as far as its import said so."""
        return dict(self.declaration.get("launch", {}))

    @property
    def text_model(self) -> str:
        """The Triton model that clients ask for text."""
        return self.name if self.name in self.models else self.models[0]


def read_manifest(directory: Path) -> ImportedModel:
    """The model whose repository `directory` is. Raises `RepositoryError`."""
    path = directory / MANIFEST
    try:
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
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RepositoryError(
            f"{directory} is no model repository of tllm's.",
            why=f"its {MANIFEST} cannot be read: {type(error).__name__}: {error}",
            next_step=f"import it again: tllm import -m {shlex.quote(directory.name)} -s SOURCE "
            "--force",
        ) from error


def list_models(
    home: Home, *, on_broken: Callable[[RepositoryError], None] | None = None
) -> list[ImportedModel]:
    """All imported models by name; folders without a manifest are not ours and left out.

    A manifest that cannot be read raises `RepositoryError`, or is told to `on_broken`.
    """
    models = []
    for name in _list_names(home):
        try:
            models.append(read_manifest(home.models / name))
        except RepositoryError as error:
            if on_broken is None:
                raise
            on_broken(error)
    return models


def find_model(home: Home, name: str) -> ImportedModel | None:
    """The imported model of this name, if there is one."""
    directory = home.models / name
    return read_manifest(directory) if (directory / MANIFEST).exists() else None


def load_model(home: Home, name: str | None) -> ImportedModel:
    """The imported model of this name, or the only one when `name` is None.

    Raises `UnknownModel` when there is none, or several to choose from.
    """
    known = _list_names(home)
    if name is None:
        if len(known) == 1:
            return read_manifest(home.models / known[0])
        if not known:
            raise UnknownModel("No model has been imported yet.", next_step="tllm import -m demo")
        raise UnknownModel(
            f"There are {len(known)} models: {', '.join(known)}.",
            next_step="choose one with -m NAME",
        )
    if name in known:
        return read_manifest(home.models / name)
    near = difflib.get_close_matches(name, known, n=3)
    raise UnknownModel(
        f"No model {name!r} has been imported.",
        why=f"did you mean {', '.join(near)}?" if near else "",
        next_step=f"tllm import -m {name}, or see `tllm list`",
    )


def is_imported(path: Path, name: str) -> bool:
    """Whether that is where commands look for the name."""
    return path == find_home().models / name


def target_of(path: Path, name: str) -> str:
    """How a command names the repository there: by its model's name, where that is enough."""
    return name if is_imported(path, name) else f"--repo {shlex.quote(str(path))}"


def command_to_import_again(path: Path, name: str) -> str:
    """What renders it again, with all that its import was told and what was changed since."""
    file = shlex.quote(f"{name}.yaml")
    return f"tllm export {target_of(path, name)} > {file} && tllm import -f {file}"


def _list_names(home: Home) -> list[str]:
    """The imported models; a hidden folder is one that is being written or removed."""
    names = [path.parent.name for path in home.models.glob(f"*/{MANIFEST}")]
    return sorted(name for name in names if not name.startswith("."))
