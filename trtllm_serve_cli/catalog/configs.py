"""Look up config.json values of catalog models, so that planning does not require downloads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.catalog.entries import load_catalog


def find_config(source: str) -> Mapping[str, Any] | None:
    """Return the config.json values that determine the model's shape.

    `source` is a string such as `hf:ORG/NAME`. Return None if the catalog does not contain the
    source or its values.
    """
    configs = _load_configs()
    names = (entry.name for entry in load_catalog().values() if entry.source == source)
    return next((configs[name] for name in names if name in configs), None)


@functools.cache
def _load_configs() -> Mapping[str, Mapping[str, Any]]:
    """Return the table in `configs.yaml`, which maps aliases to config.json values."""
    import yaml

    table = resources.files("trtllm_serve_cli.catalog").joinpath("configs.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return MappingProxyType(yaml.load(table.read_text(encoding="utf-8"), Loader=loader))
