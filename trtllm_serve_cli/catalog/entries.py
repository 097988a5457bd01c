"""Read and validate the catalog of model aliases and look up aliases."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.errors import BadInput, UnknownModel
from trtllm_serve_cli.paths import check_model_name

_FIELDS = {"source", "family", "parameters", "gated"}
_SOURCE = re.compile(r"(hf|pypi):\S+")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMB])")
_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An alias for a model.

    `source` has the same format as the `-s` option. `num_parameters` is approximate.
    """

    name: str
    source: str
    family: str
    num_parameters: int
    is_gated: bool = False


@functools.cache
def load_catalog() -> Mapping[str, CatalogEntry]:
    """Return all entries, keyed by alias, in the order of `models.yaml`."""
    table = resources.files("trtllm_serve_cli.catalog").joinpath("models.yaml")
    return parse_catalog(table.read_text(encoding="utf-8"))


def parse_catalog(text: str) -> Mapping[str, CatalogEntry]:
    """Parse the catalog from YAML.

    Raise `BadInput` if `text` is not a valid YAML mapping, or if an entry is not valid.
    """
    import yaml

    try:
        table = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise BadInput(
            "The model catalog is not valid YAML.",
            why=" ".join(str(error).split()),
            next_step="reinstall trtllm-serve-cli, or correct catalog/models.yaml in the package",
        ) from error
    if not isinstance(table, dict):
        raise _invalid("The model catalog is not valid.", "the file is not a mapping of aliases")
    return MappingProxyType({str(name): _parse_entry(str(name), table[name]) for name in table})


def find_alias(name: str) -> CatalogEntry | None:
    """Return the entry for an alias (case-insensitive), or None if the alias is unknown."""
    return load_catalog().get(name.lower())


def resolve_alias(name: str) -> CatalogEntry:
    """Return the entry for an alias (case-insensitive).

    Raise `UnknownModel` if the alias is unknown. The error lists similar aliases, if any.
    """
    if entry := find_alias(name):
        return entry
    near = find_near_aliases(name)
    raise UnknownModel(
        f"The model {name!r} is unknown.",
        why=(
            "the name is neither an imported model nor an alias in the catalog; similar aliases "
            f"are {', '.join(near)}"
        )
        if near
        else "the name is neither an imported model nor an alias in the catalog",
        next_step=(
            f"run `tllm import -m {near[0]}`"
            if near
            else "run `tllm list --catalog` to list the aliases"
        )
        + ", or import any model from the hub with `tllm import -m NAME -s hf:ORG/NAME`",
    )


def find_near_aliases(name: str, limit: int = 5) -> list[str]:
    """Return up to `limit` aliases that are similar to `name`, most similar first.

    If `name` has at least three characters, aliases that contain `name` follow the similar aliases.
    Any text up to the last slash in `name` is ignored.
    """
    query = name.lower().rpartition("/")[2]
    near = difflib.get_close_matches(query, load_catalog(), n=limit)
    inside = [alias for alias in load_catalog() if len(query) > 2 and query in alias]
    return list(dict.fromkeys([*near, *inside]))[:limit]


def _parse_entry(name: str, fields: Any) -> CatalogEntry:
    check_model_name(name)
    if name != name.lower():
        raise _wrong(name, "aliases must be lowercase")
    if not isinstance(fields, dict) or not set(fields) <= _FIELDS:
        raise _wrong(
            name,
            "an entry must be a mapping that contains only the fields "
            f"{', '.join(sorted(_FIELDS))}, but is {fields!r}",
        )
    source, family = fields.get("source"), fields.get("family")
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise _wrong(
            name,
            f"`source` must have the form hf:ORG/NAME or pypi:PKG==VERSION#FILE, but is {source!r}",
        )
    if not isinstance(family, str) or not family:
        raise _wrong(name, f"`family` must be a non-empty string, but is {family!r}")
    gated = fields.get("gated", False)
    if not isinstance(gated, bool):
        raise _wrong(name, f"`gated` must be true or false, but is {gated!r}")
    return CatalogEntry(name, source, family, _parse_count(name, fields.get("parameters")), gated)


def _parse_count(name: str, text: Any) -> int:
    count = _COUNT.fullmatch(text) if isinstance(text, str) else None
    if count is None:
        raise _wrong(
            name, f"`parameters` must be a count, for example 135M or 6.7B, but is {text!r}"
        )
    return round(float(count[1]) * _UNITS[count[2]])


def _wrong(name: str, why: str) -> BadInput:
    return _invalid(f"The entry {name} in the model catalog is not valid.", why)


def _invalid(what: str, why: str) -> BadInput:
    return BadInput(
        what,
        why=why,
        next_step="reinstall trtllm-serve-cli, or correct catalog/models.yaml in the package",
    )
