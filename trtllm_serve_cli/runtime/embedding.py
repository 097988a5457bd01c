"""Pool, truncate, normalize and encode embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .embedding_settings import EmbeddingSettings, unknown_pooling

Vector = NDArray[np.float32]
# Little-endian, as in OpenAI API responses.
_FLOAT32 = np.dtype("<f4")


def shorten(vector: Vector, dimensions: int | None, settings: EmbeddingSettings) -> Vector:
    """Truncate an embedding to `dimensions` values, or return it unchanged if `dimensions` is None.

    Normalize the truncated embedding again if the model normalizes embeddings.
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    shortened = vector[:dimensions]
    return normalize(shortened[None])[0] if settings.is_normalized else shortened


def pool(hidden: NDArray[Any], mask: NDArray[Any], mode: str) -> Vector:
    """Pool the token vectors in `hidden` into one vector per row.

    `hidden` has shape [rows, tokens, values] and is padded on the right. `mask` has shape [rows,
    tokens] and is 1 for tokens and 0 for padding. Raise `ValueError` if `mode` is not one of the
    `POOLING_MODES`. The modes are defined in sentence_transformers/models/Pooling.py
    (UKPLab/sentence-transformers 5).
    """
    states = np.asarray(hidden, dtype=np.float32)
    weights = mask.astype(np.float32)[:, :, None]
    counts = np.maximum(weights.sum(axis=1), 1e-9)
    if mode == "cls":
        pooled = states[:, 0]
    elif mode == "lasttoken":
        last = np.maximum(mask.sum(axis=1) - 1, 0)
        pooled = states[np.arange(len(states)), last]
    elif mode == "max":
        pooled = np.where(weights > 0, states, -np.inf).max(axis=1)
    elif mode == "mean":
        pooled = (states * weights).sum(axis=1) / counts
    elif mode == "mean_sqrt_len_tokens":
        pooled = (states * weights).sum(axis=1) / np.sqrt(counts)
    elif mode == "weightedmean":
        weights = weights * np.arange(1, states.shape[1] + 1, dtype=np.float32)[None, :, None]
        pooled = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
    else:
        raise unknown_pooling(mode)
    return np.asarray(pooled, dtype=np.float32)


def normalize(vectors: Vector) -> Vector:
    """Scale each vector to length 1. Zero vectors stay unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def encode_vector(vector: Vector) -> str:
    """Encode an embedding as little-endian 32-bit floats in Base64."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype=_FLOAT32).tobytes()).decode()


def decode_vector(text: str) -> Vector:
    """Decode an embedding that `encode_vector` has encoded."""
    return np.frombuffer(base64.b64decode(text), dtype=_FLOAT32).astype(np.float32)


def pad_right(prompts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the token ids and the attention mask of a batch, padded on the right with 0."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
        mask[row, : len(prompt)] = 1
    return ids, mask
