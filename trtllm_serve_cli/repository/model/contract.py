"""Define the input and output tensors that clients expect from each model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output tensor of a model.

    `dims` and `reshape` exclude the batch dimension.
    """

    name: str
    type: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """The input and output tensors of a model."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@cache
def load_contracts() -> dict[str, Contract]:
    """Return the contract of each model in `contract.yaml`, by model name."""
    import yaml

    table = resources.files("trtllm_serve_cli.repository.model").joinpath("contract.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    models = yaml.load(table.read_text(encoding="utf-8"), Loader=loader)
    return {
        model: Contract(_tensors(sides["inputs"]), _tensors(sides["outputs"]))
        for model, sides in models.items()
    }


def _tensors(entries: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            name=entry["name"],
            type=entry["type"],
            dims=tuple(entry["dims"]),
            reshape=tuple(entry["reshape"]) if "reshape" in entry else None,
            optional=entry.get("optional", False),
            ragged=entry.get("ragged", False),
        )
        for entry in entries
    )
