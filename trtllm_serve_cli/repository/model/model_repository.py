"""Read a model repository that tllm rendered, or a copy of one of NVIDIA's repositories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_serve_cli.engine_kinds.registry import UPSTREAM
from trtllm_serve_cli.engine_kinds.serving import DRAFT_MODEL
from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.repository.model.file_changes import complete_changes
from trtllm_serve_cli.repository.model.parameters import Parameter
from trtllm_serve_cli.repository.model.store import MANIFEST, target_of
from trtllm_serve_cli.repository.pbtxt import (
    PbtxtError,
    Unfilled,
    find_values,
    is_unfilled,
    list_unfilled,
)

CONFIG = "config.pbtxt"
# Layouts that use the same models and `config.pbtxt` parameters as NVIDIA's repositories.
UPSTREAM_LAYOUTS = ("inflight", "gpt")
ROLES = (
    "preprocessing", "tensorrt_llm", DRAFT_MODEL, "postprocessing", "ensemble", "tensorrt_llm_bls",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpenRepository:
    """The contents of a model repository.

    `texts` maps model folder names to the text of the folder's `config.pbtxt`. `manifest` is empty
    if tllm did not render the repository.
    """

    path: Path
    texts: Mapping[str, str]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.manifest.get("name", self.path.name))

    @property
    def target(self) -> str:
        """The argument that selects this repository in commands: its name or `--repo PATH`."""
        return target_of(self.path, self.name)

    @property
    def has_manifest(self) -> bool:
        return bool(self.manifest)

    @property
    def kind(self) -> str:
        """The engine kind from the manifest or a `config.pbtxt`.

        If neither file names a kind, the repository is a copy of NVIDIA's repository, which runs a
        TensorRT engine.
        """
        if self.manifest:
            return str(self.manifest["engine"]["kind"])
        for text in self.texts.values():
            for kind in _values(text, "parameters.engine_kind"):
                return kind
        return UPSTREAM

    @property
    def layout(self) -> str:
        """The repository's layout.

        The manifest specifies the layout. Without a manifest, the layout is gpt if `tensorrt_llm`
        is a Python model with an `engine_dir` entry but no `gpt_model_path` entry. Otherwise, the
        layout is inflight.
        """
        if self.manifest:
            return str(self.manifest.get("layout", "inflight"))
        core = self.texts.get("tensorrt_llm", "")
        is_gpt = _values(core, "parameters.engine_dir") and not _values(
            core, "parameters.gpt_model_path"
        )
        return "gpt" if is_gpt and _values(core, "backend") == ["python"] else "inflight"

    def role(self, model: str) -> str | None:
        """Return the name of the model in NVIDIA's repository that `model` replaces, or None.

        If `ensemble` is a Python model, it corresponds to `tensorrt_llm_bls`, because both models
        have the same parameters. Only models in the inflight and gpt layouts have the parameters
        and tensors of NVIDIA's models. In other layouts, return None.
        """
        if self.layout not in UPSTREAM_LAYOUTS:
            return None
        if model == self.manifest.get("name"):
            return "tensorrt_llm_bls"
        if model == "ensemble" and "python" in _values(self.texts[model], "backend"):
            return "tensorrt_llm_bls"
        return model if model in ROLES else None

    def roles(self, model: str) -> tuple[str, ...]:
        """Return the names of NVIDIA's models whose parameters and tensors `model` has.

        A draft model also has the parameters of `tensorrt_llm`.
        """
        role = self.role(model)
        if role == DRAFT_MODEL:
            return (DRAFT_MODEL, "tensorrt_llm")
        return (role,) if role else ()

    def places(self, parameter: Parameter) -> Iterator[tuple[str, str]]:
        """Yield the model and the path of each `config.pbtxt` field that the parameter sets."""
        for model in self.texts:
            for place in parameter.places(self.role(model), self.layout):
                yield model, place

    def places_in(self, parameter: Parameter, model: str) -> tuple[str, ...]:
        """Return the fields that the parameter sets in the model's `config.pbtxt`.

        All roles of the model are considered.
        """
        return tuple(
            place for role in self.roles(model) for place in parameter.places(role, self.layout)
        )

    def values(self, model: str, place: str) -> list[str]:
        """Return the values of the field with the path `place` in the model's `config.pbtxt`.

        Raise `RepositoryError` if the file cannot be parsed.
        """
        try:
            return find_values(self.texts[model], place)
        except PbtxtError as error:
            raise unreadable(self, model, error) from error

    def value(self, model: str, place: str) -> str:
        """Return the value of the field with the path `place` in the model's `config.pbtxt`.

        Return "" if the value is missing or is an unfilled variable, or if the file cannot be
        parsed.
        """
        values = _values(self.texts[model], place)
        return "" if not values or is_unfilled(values[0]) else values[0]


def unfilled(repository: OpenRepository, model: str) -> list[Unfilled]:
    """Return the unfilled variables in the model's `config.pbtxt`, or [] if it cannot be parsed."""
    try:
        return list_unfilled(repository.texts[model])
    except PbtxtError:
        return []


def open_repository(directory: Path) -> OpenRepository:
    """Read the repository in `directory`.

    If a command was killed while it replaced files, complete its changes first. Raise
    `RepositoryError` if a file cannot be read, or if no folder contains a `config.pbtxt`.
    """
    texts = {}
    try:
        complete_changes(directory)
        for path in sorted(directory.glob(f"*/{CONFIG}")):
            texts[path.parent.name] = path.read_bytes().decode("utf-8")
        manifest_path = directory / MANIFEST
        manifest = (
            json.loads(manifest_path.read_text(encoding="utf-8")) if manifest_path.exists() else {}
        )
        if manifest and not isinstance(manifest["engine"]["kind"], str):
            raise TypeError("the engine kind is not a string")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RepositoryError(
            f"The model repository {directory} cannot be read.",
            why=f"{type(error).__name__}: {error}",
            next_step=f"check {MANIFEST} and the {CONFIG} files in this folder, or import the "
            "model again with `tllm import -m NAME -s SOURCE --force`",
        ) from error
    if not texts:
        raise RepositoryError(
            f"{directory} is not a model repository.",
            why=f"no subfolder contains a {CONFIG} file"
            if directory.exists()
            else "the folder does not exist",
            next_step="use --repo DIR to pass the folder that contains the model folders",
        )
    return OpenRepository(directory, texts, manifest)


def unreadable(repository: OpenRepository, model: str, error: PbtxtError) -> RepositoryError:
    """Return the error for a `config.pbtxt` that cannot be parsed."""
    path = repository.path / model / CONFIG
    return RepositoryError(
        f"{path}, line {error.line}: {error.what}",
        why="the file is not valid protobuf text format",
        next_step="correct this line, then run the same command again",
    )


def _values(text: str, place: str) -> list[str]:
    """Return the values of the field `place` in `text`, or [] if `text` cannot be parsed."""
    try:
        return find_values(text, place)
    except PbtxtError:
        return []
