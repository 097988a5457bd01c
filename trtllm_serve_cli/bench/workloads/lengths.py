"""Draw prompts of random token ids with normally distributed lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.bench.workloads.spec import Ids, RequestSpec


@dataclass(frozen=True, slots=True)
class TokenNormDist:
    """A workload with normally distributed prompt and output lengths, in tokens.

    Lengths are rounded to integers and are at least 1. Token ids are uniformly distributed over the
    vocabulary, so prompts are very unlikely to share KV-cache blocks.
    """

    input_mean: float = 128
    input_stdev: float = 5
    output_mean: float = 20
    output_stdev: float = 2

    num_available: ClassVar[None] = None

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        inputs = draw_lengths(self.input_mean, self.input_stdev, num_requests, rng)
        outputs = draw_lengths(self.output_mean, self.output_stdev, num_requests, rng)
        prompts = draw_prompts(inputs, vocab_size, rng)
        return [RequestSpec(ids, int(n)) for ids, n in zip(prompts, outputs, strict=True)]

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def draw_lengths(
    mean: float, stdev: float, num_requests: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw normally distributed lengths, rounded to integers of at least 1."""
    drawn = np.rint(rng.normal(mean, stdev, num_requests))
    lengths: NDArray[np.int64] = np.maximum(drawn, 1).astype(np.int64)
    return lengths


def draw_prompts(
    lengths: NDArray[np.int64], vocab_size: int, rng: np.random.Generator
) -> list[Ids]:
    """Draw a prompt of each length in `lengths`, with uniformly distributed token ids."""
    ids = rng.integers(0, vocab_size, size=int(lengths.sum()), dtype=np.int32)
    ends = np.cumsum(lengths)
    return [ids[end - length : end] for end, length in zip(ends, lengths, strict=True)]
