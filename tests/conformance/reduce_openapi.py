"""Reduce OpenAI's specification to the paths that the gateway serves.

Usage: python reduce_openapi.py openapi.yaml served.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SERVED = {
    "/chat/completions": "post",
    "/completions": "post",
    "/models": "get",
    "/models/{model}": "get",
    "/responses": "post",
    "/embeddings": "post",
}


def main(source: str, target: str) -> None:
    """Write the reduced specification to `target`."""
    spec = yaml.load(Path(source).read_text(), Loader=yaml.CSafeLoader)
    spec["paths"] = {path: {key: spec["paths"][path][key]} for path, key in SERVED.items()}
    spec.pop("webhooks", None)
    used = set(_list_used(spec))
    spec["components"] = {
        kind: {
            name: value
            for name, value in values.items()
            if kind == "securitySchemes" or f"#/components/{kind}/{name}" in used
        }
        for kind, values in spec["components"].items()
    }
    Path(target).write_text(yaml.dump(spec, sort_keys=False))


def _list_used(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the components that the paths need, directly or through other components."""
    pending, seen = [*_list_references(spec["paths"])], set()
    while pending:
        if (reference := pending.pop()) not in seen:
            seen.add(reference)
            kind, name = reference.removeprefix("#/components/").split("/")
            pending += _list_references(spec["components"][kind][name])
            yield reference


def _list_references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _list_references(each)


if __name__ == "__main__":
    main(*sys.argv[1:])
