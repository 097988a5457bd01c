"""Describe a model that computes embeddings, and convert embeddings to and from text."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import InvalidRequest

Vector = NDArray[np.float32]
# The pooling modes of sentence-transformers that are supported.
POOLING_MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# Little-endian, as in the responses of OpenAI's API.
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The settings with which a model computes embeddings.

    An embedding has `dimension` values, which are pooled from the tokens with one of the
    `POOLING_MODES`. `is_normalized` is true if its length is 1. If `is_matryoshka` is set, a
    shorter embedding consists of the first values. `matryoshka_dimensions` are the supported sizes;
    if it is empty, any size is supported. `prompts` maps names to texts that a client can prepend
    to its inputs.
    """

    dimension: int
    pooling: str = "mean"
    is_normalized: bool = False
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the settings as JSON, for an entry in `config.pbtxt`."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> EmbeddingSettings:
        """Read settings from decoded JSON. Raise `ValueError` or `TypeError` if they are invalid.

        Unknown fields are ignored.
        """
        known = {each: fields[each] for each in cls.__slots__ if each in fields}
        sizes = tuple(int(each) for each in fields.get("matryoshka_dimensions", ()))
        return cls(**{**known, "matryoshka_dimensions": sizes})

    def check_dimensions(self, dimensions: int) -> None:
        """Raise `InvalidRequest` if the model has no embeddings with this number of values."""
        if dimensions == self.dimension:
            return
        if not self.is_matryoshka:
            raise InvalidRequest(
                f"dimensions is {dimensions}, but this model computes only embeddings with "
                f"{self.dimension} values, because its checkpoint does not declare "
                "matryoshka_dimensions; omit dimensions"
            )
        sizes = self.matryoshka_dimensions
        if sizes and dimensions not in sizes:
            raise InvalidRequest(
                f"dimensions is {dimensions}; it must be one of {', '.join(map(str, sizes))}"
            )
        if not 1 <= dimensions <= self.dimension:
            raise InvalidRequest(
                f"dimensions is {dimensions}; it must be from 1 to {self.dimension}"
            )

    def find_prompt(self, name: str) -> str:
        """Return the text of a prompt, or "" without a name. Raise `InvalidRequest`."""
        if not name:
            return ""
        if (prompt := self.prompts.get(name)) is None:
            known = ", ".join(self.prompts) or "none"
            raise InvalidRequest(
                f"prompt_name is {name!r}, but this model does not have such a prompt; its prompts "
                f"are: {known}"
            )
        return prompt

    def shorten(self, vector: Vector, dimensions: int | None) -> Vector:
        """Return the first values of an embedding, normalized again if the model normalizes."""
        if dimensions is None or dimensions == len(vector):
            return vector
        shortened = vector[:dimensions]
        return normalize(shortened[None])[0] if self.is_normalized else shortened


def pool(hidden: NDArray[Any], mask: NDArray[Any], mode: str) -> Vector:
    """Return one vector per row of `hidden`, which has the shape [rows, tokens, values].

    `mask` is 1 for tokens and 0 for the padding after them. Source of the modes:
    sentence_transformers/models/Pooling.py in UKPLab/sentence-transformers 5.
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
        raise ValueError(f"pooling is {mode!r}; it must be one of {', '.join(POOLING_MODES)}")
    return np.asarray(pooled, dtype=np.float32)


def normalize(vectors: Vector) -> Vector:
    """Return the vectors with the length 1. Vectors with the length 0 are unchanged."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def encode_vector(vector: Vector) -> str:
    """Return an embedding as Base64 text of its little-endian 32-bit floats."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype=_FLOAT32).tobytes()).decode()


def decode_vector(text: str) -> Vector:
    """Return the embedding that `encode_vector` encoded."""
    return np.frombuffer(base64.b64decode(text), dtype=_FLOAT32).astype(np.float32)


def pad_right(prompts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the token ids and the attention mask of a batch, padded on the right."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
        mask[row, : len(prompt)] = 1
    return ids, mask
