"""The models of a combined repository, which `combined` plans and writes.

Commands start faster because this module does not import those that read repositories.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model in a combined repository.

    `name` is the model's name in the combined repository. `source` is the model's folder in the
    original repository. `changes` maps fields of the model's `config.pbtxt` to their new values.
    """

    name: str
    source: Path
    changes: dict[str, str] = field(default_factory=dict)


def prefixed(owner: str, model: str) -> str:
    """Return the name that `model` from the repository `owner` has in the combined repository."""
    return model if model == owner else f"{owner}_{model}"
