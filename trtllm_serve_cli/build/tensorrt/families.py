"""Look up in `families.yaml` which TensorRT-LLM program converts an architecture."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.build.tensorrt.versions import load_table
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.shape import ModelShape

_FIRST_WITH_TRTLLM_BUILD = Version("0.8.0")


@dataclass(frozen=True, slots=True)
class Variants:
    """The converter flag that selects a model's variant.

    In each mapping in `values`, "value" is the flag's value. The other keys are conditions: either
    `ModelShape` fields, or "name", a substring of the lower-case published model name.
    """

    flag: str
    values: tuple[Mapping[str, str | int], ...]

    def find(self, shape: ModelShape, published_name: str) -> str | None:
        """Return the variant of a model, or `None` if no variant's conditions are met."""
        for row in self.values:
            facts = {key: value for key, value in row.items() if key not in ("value", "name")}
            has_name = str(row.get("name", "")) in published_name.lower()
            if has_name and all(getattr(shape, key) == value for key, value in facts.items()):
                return str(row["value"])
        return None


@dataclass(frozen=True, slots=True)
class Family:
    """The converter for an architecture in one TensorRT-LLM version.

    - `folder`: the script's folder under `examples/`.
    - `quantizations`: the quantizations that the version supports.
    - `later_quantizations`: the quantizations that only later versions support, with the first
      version that supports each quantization.
    - `input_quantizations`: the quantizations of checkpoints that the converter can read.
    - `converts_gptq`: true if the converter reads GPTQ checkpoints for `--quantization int4_gptq`.
    - `converter_quantizations`: the quantizations that the converter supports in this version, but
      quantize.py does not.
    - `flag_names`: maps a flag to the name that this converter uses instead.
    - `extra_arguments`: arguments that are always passed to the converter.
    - `has_pipeline`: true if the converter supports pipeline parallelism.
    - `variants`: the flag for the model's variant, or `None` if the family has no variants.
    """

    name: str
    architecture: str
    folder: str
    quantizations: tuple[str, ...]
    later_quantizations: Mapping[str, Version]
    input_quantizations: tuple[str, ...] = ()
    converts_gptq: bool = False
    converter_quantizations: tuple[str, ...] = ()
    flag_names: Mapping[str, str] = field(default_factory=dict)
    extra_arguments: tuple[str, ...] = ()
    has_pipeline: bool = True
    variants: Variants | None = None

    @property
    def converter(self) -> str:
        """The converter's program name for `flags_of`."""
        return f"{self.name}/convert_checkpoint.py"


def find_family(architecture: str, version: Version) -> Family:
    """Return the family for an `architecture` name from config.json.

    Raise `BadInput` if tllm cannot plan engines for this architecture, or if TensorRT-LLM `version`
    cannot convert models with this architecture.
    """
    check_planned(architecture)
    for name, row in _load().items():
        if architecture in row["architectures"]:
            return _parse(name, row, architecture, version)
    raise BadInput(
        f"TensorRT engines do not support the {architecture} architecture.",
        why=f"the supported architectures are {', '.join(_architectures())}",
        next_step="use --engine pytorch with TensorRT-LLM 1.0 or later",
    )


def uses_build_py(architecture: str, version: Version) -> bool:
    """Return whether TensorRT-LLM `version` builds engines for `architecture` with a build.py.

    Versions before 0.8 use build.py for all models. Version 0.8 still uses it for gpt models.
    """
    if version < _FIRST_WITH_TRTLLM_BUILD:
        return True
    rows = [row for row in _load().values() if architecture in row.get("build_py", {})]
    return any(find_folder(row["folders"], version) is None for row in rows)


def find_legacy_family(architecture: str, version: Version) -> str:
    """Return the folder under `examples/` with the build.py that builds engines for `architecture`.

    Raise `BadInput` if tllm cannot plan engines for this architecture with TensorRT-LLM `version`.
    """
    check_planned(architecture)
    known = {
        name: (family, Version(since))
        for family, row in _load().items()
        for name, since in row.get("build_py", {}).items()
    }
    family, since = known.get(architecture, ("", None))
    if since is not None and since <= version:
        return family
    names = ", ".join(name for name, (_, first) in known.items() if first <= version)
    raise BadInput(
        f"tllm cannot plan {architecture} engines for TensorRT-LLM {version}.",
        why=f"for this version, tllm supports only {names}",
        next_step="use TensorRT-LLM 0.9 or later",
    )


def check_planned(architecture: str) -> None:
    """Raise `BadInput` if `unplanned.yaml` contains `architecture`.

    TensorRT-LLM can convert the architectures in this file, but tllm cannot plan engines for them.
    """
    for row in _load_unplanned():
        if architecture in row["architectures"]:
            raise BadInput(
                f"tllm cannot build TensorRT engines for {architecture}.",
                why=row["why"],
                next_step="build the engine as described in TensorRT-LLM's "
                f"{row['program'].rpartition('/')[0]}/README.md",
            )


def find_folder(folders: Mapping[str, str], version: Version) -> str | None:
    """Return the folder for `version`, or `None` if `version` precedes all releases in `folders`.

    `folders` maps each release, in ascending order, to the folder that is used from this release
    until the next one.
    """
    found = [folder for since, folder in folders.items() if Version(since) <= version]
    return found[-1] if found else None


def _parse(name: str, row: Mapping[str, Any], architecture: str, version: Version) -> Family:
    own = row["architectures"][architecture]
    since, formats = own, row.get("quantizations", {})
    by_converter = row.get("by_converter", {})
    if not isinstance(own, str):
        since, formats = own["since"], own["quantizations"]
        by_converter = own.get("by_converter", {})
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
        converts_gptq=row.get("converts_gptq", False),
        converter_quantizations=tuple(
            word for word, end in by_converter.items() if end is None or version < Version(end)
        ),
        flag_names=MappingProxyType(row.get("flag_names", {})),
        extra_arguments=tuple(row.get("extra_arguments", ())),
        has_pipeline=not row.get("no_pipeline", False),
        variants=_parse_variants(row.get("variants")),
    )


def _parse_variants(row: Mapping[str, Any] | None) -> Variants | None:
    return Variants(row["flag"], tuple(row["values"])) if row else None


def _available(first_versions: Mapping[str, str], version: Version) -> tuple[str, ...]:
    return tuple(word for word, first in first_versions.items() if Version(first) <= version)


def _architectures() -> list[str]:
    return [architecture for row in _load().values() for architecture in row["architectures"]]


@functools.cache
def _load() -> Any:
    return load_table("families.yaml")


@functools.cache
def _load_unplanned() -> Any:
    return load_table("unplanned.yaml")
