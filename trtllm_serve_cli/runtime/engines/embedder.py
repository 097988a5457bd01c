"""Define the interface of models that compute embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..embedding import Vector


class Embedder(Protocol):
    """A model that computes the embeddings of a batch of prompts."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        """Return an array of embeddings with the shape [prompts, dimension]."""

    def close(self) -> None:
        """Release all resources that would outlive this process."""
