"""What is sent: requests of random token ids whose lengths follow a distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """One request: the ids of its prompt, of shape [n], and the exact length of its answer."""

    input_ids: NDArray[np.int32]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class TokenNormDist:
    """Prompt and answer lengths drawn from two normal distributions, in tokens.

    Lengths are rounded to whole tokens and are at least 1. The ids are uniform over the vocabulary,
    so no two prompts share a prefix worth caching.
    """

    input_mean: float = 128
    input_stdev: float = 5
    output_mean: float = 20
    output_stdev: float = 2

    def draw(
        self, num_requests: int, vocab_size: int, rng: np.random.Generator
    ) -> list[RequestSpec]:
        """`num_requests` requests; a generator in the same state gives the same requests."""
        inputs = _draw_lengths(self.input_mean, self.input_stdev, num_requests, rng)
        outputs = _draw_lengths(self.output_mean, self.output_stdev, num_requests, rng)
        ids = rng.integers(0, vocab_size, size=int(inputs.sum()), dtype=np.int32)
        ends = np.cumsum(inputs)
        return [
            RequestSpec(ids[end - length : end], int(num_output_tokens))
            for end, length, num_output_tokens in zip(ends, inputs, outputs, strict=True)
        ]


def _draw_lengths(
    mean: float, stdev: float, num_requests: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    drawn = np.rint(rng.normal(mean, stdev, num_requests))
    lengths: NDArray[np.int64] = np.maximum(drawn, 1).astype(np.int64)
    return lengths
