"""Simulate an embedding model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...embedding import Vector, normalize
from ...embedding_settings import EmbeddingSettings
from .timing import SIMULATION_FILE, StepWork, parse_simulation


class SimEmbedder:
    """A simulated embedding model.

    An embedding is the mean of made-up vectors, one per prompt token, so prompts that share tokens
    have similar embeddings. If the settings require normalization, the mean is scaled to length 1.
    `config` contains engine_dir and embedding (the fields of `EmbeddingSettings`).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        path = Path(config["engine_dir"], SIMULATION_FILE)
        self._timing = parse_simulation(path.read_text(encoding="utf-8")).timing
        self._settings = EmbeddingSettings.from_dict(config["embedding"])

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        """Wait for the simulated step duration and return the embeddings of the prompts."""
        work = StepWork(
            prompt_tokens=sum(map(len, prompts)),
            prompt_pairs=sum(len(each) * (len(each) - 1) // 2 for each in prompts),
        )
        time.sleep(self._timing.duration_s(work))
        vectors = np.stack([self._mean(each) for each in prompts])
        return normalize(vectors) if self._settings.is_normalized else vectors

    def close(self) -> None:
        """Do nothing, because the simulation has no resources that outlive this process."""

    def _mean(self, prompt: Sequence[int]) -> Vector:
        vectors = [_vector_of(token, self._settings.dimension) for token in prompt]
        return np.asarray(np.mean(vectors, axis=0), dtype=np.float32)


@cache
def _vector_of(token: int, dimension: int) -> Vector:
    return np.random.default_rng(token).standard_normal(dimension, dtype=np.float32)
