"""Send the same batch of prompts in every request, like tensorrtllm_backend's identity test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from trtllm_serve_cli.bench.workloads.spec import RequestSpec

# The upper bound for token ids in `tools/gpt/identity_test.py` of tensorrtllm_backend@v0.5.0.
_UPSTREAM_VOCAB_SIZE = 50255


@dataclass(frozen=True, slots=True)
class Identity:
    """A workload that sends the same batch of prompts in every request.

    The batch has `batch_size` prompts, and each prompt has `num_input_tokens` tokens.
    """

    batch_size: int = 8
    num_input_tokens: int = 8
    num_output_tokens: int = 10

    num_available: ClassVar[None] = None

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        shape = (self.batch_size, self.num_input_tokens)
        # Use a fixed seed instead of `rng`, so that the warm-up sends the same ids.
        ids = np.random.default_rng(0).integers(
            0, min(vocab_size, _UPSTREAM_VOCAB_SIZE), shape, dtype=np.int32
        )
        return [RequestSpec(ids, self.num_output_tokens)] * num_requests

    def describe(self) -> dict[str, Any]:
        return asdict(self)
