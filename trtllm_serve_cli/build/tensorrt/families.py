"""Find the TensorRT-LLM converter for an architecture in `families.yaml`."""

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
    """The converter for an architecture in one version of TensorRT-LLM.

    `folder` is the script's folder under `examples/`. `quantizations` are the quantizations that
    the version supports. `later_quantizations` maps each quantization that only later versions
    support to the first such version. `input_quantizations` are quantizations that the checkpoint
    may already have. `flag_names` maps a flag to the name that this converter uses instead.
    `extra_arguments` are always passed to the converter. `has_pipeline` is true if the converter
    supports pipeline parallelism.
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
        """The name of the converter, in the form that `flags_of` expects."""
        return f"{self.name}/convert_checkpoint.py"


def find_family(architecture: str, version: Version) -> Family:
    """Return the family for `architecture`, which is a name from config.json.

    Raise `BadInput` if TensorRT-LLM `version` cannot convert models with this architecture.
    """
    for name, row in _load().items():
        if architecture in row["architectures"]:
            return _parse(name, row, architecture, version)
    raise BadInput(
        f"TensorRT engines do not support the architecture {architecture}.",
        why=f"the supported architectures are {', '.join(_architectures())}",
        next_step="use --engine pytorch with TensorRT-LLM 1.0 or later",
    )


def find_folder(folders: Mapping[str, str], version: Version) -> str | None:
    """Return the folder for `version`, or `None` if `version` is older than all `folders`.

    `folders` maps the first release with each folder to the folder, in ascending order.
    """
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
            why=f"support was added in {since}",
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
