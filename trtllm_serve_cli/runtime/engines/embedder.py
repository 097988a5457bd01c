"""Define the interface of embedding models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..embedding import Vector


class Embedder(Protocol):
    """An embedding model."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        """Compute the embeddings of a batch of prompts.

        Return an array of shape [prompts, dimension].
        """

    def close(self) -> None:
        """Release all resources that would outlive this process."""
