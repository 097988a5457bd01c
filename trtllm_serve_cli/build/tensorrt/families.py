"""Which converter makes a TensorRT-LLM checkpoint of an architecture, from `families.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import load_table
from trtllm_serve_cli.errors import BadInput


@dataclass(frozen=True, slots=True)
class Family:
    """One converter, as one architecture uses it in one version.

    `folder` is that of its script under `examples/`. `words` are its own names for flags; `always`
    is what it must be told as well. `quantizations` and `already` (what a checkpoint may come
    quantised with) are those of the version; `later` are those of later versions, and the first
    one with each.
    """

    name: str
    architecture: str
    folder: str
    quantizations: tuple[str, ...]
    later_quantizations: Mapping[str, Version]
    input_quantizations: tuple[str, ...] = ()
    flag_names: Mapping[str, str] = field(default_factory=dict)
    extra_arguments: tuple[str, ...] = ()
    has_pipeline: bool = True

    @property
    def converter(self) -> str:
        """Its program, as `flags_of` has it."""
        return f"{self.name}/convert_checkpoint.py"


def find_family(architecture: str, version: Version) -> Family:
    """The family of config.json's `architecture`; raises `BadInput` where this version has none."""
    for name, row in _load().items():
        if architecture in row["architectures"]:
            return _parse(name, row, architecture, version)
    raise BadInput(
        f"The architecture {architecture} cannot be made into a TensorRT engine.",
        why=f"engines are planned for {', '.join(_architectures())}",
        next_step="--engine pytorch serves the checkpoint itself, from TensorRT-LLM 1.0 on",
    )


def find_folder(folders: Mapping[str, str], version: Version) -> str | None:
    """The one of the latest release up to `version`."""
    found = [folder for since, folder in folders.items() if Version(since) <= version]
    return found[-1] if found else None


def _parse(name: str, row: Mapping[str, Any], architecture: str, version: Version) -> Family:
    own = row["architectures"][architecture]
    since, formats = own, row.get("quantizations", {})
    if not isinstance(own, str):
        since, formats = own["since"], own["quantizations"]
    folder = find_folder(row["folders"], version)
    if folder is None or version < Version(since):
        raise BadInput(
            f"TensorRT-LLM {version} does not convert {architecture}.",
            why=f"it does from {since} on",
            next_step=f"use TensorRT-LLM {since} or later",
        )
    return Family(
        name=name,
        architecture=architecture,
        folder=folder,
        quantizations=_available(formats, version),
        later_quantizations=MappingProxyType(
            {word: Version(first) for word, first in formats.items() if version < Version(first)}
        ),
        input_quantizations=_available(row.get("input_quantizations", {}), version),
        flag_names=MappingProxyType(row.get("flag_names", {})),
        extra_arguments=tuple(row.get("extra_arguments", ())),
        has_pipeline=not row.get("no_pipeline", False),
    )


def _available(first_versions: Mapping[str, str], version: Version) -> tuple[str, ...]:
    return tuple(word for word, first in first_versions.items() if Version(first) <= version)


def _architectures() -> list[str]:
    return [architecture for row in _load().values() for architecture in row["architectures"]]


@functools.cache
def _load() -> Any:
    return load_table("families.yaml")
