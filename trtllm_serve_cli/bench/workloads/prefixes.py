"""Draw requests that share prefixes, to measure KV cache reuse."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist, draw_lengths, draw_prompts
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Turn


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A workload in which each request starts with one of `num_prefixes` system prompts.

    `own` defines the distributions of the output lengths and of the prompt lengths without the
    prefix.
    """

    own: TokenNormDist
    num_prefix_tokens: int
    num_prefixes: int = 1

    num_available: ClassVar[None] = None

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        lengths = np.full(self.num_prefixes, self.num_prefix_tokens)
        # Use a fixed seed instead of `rng`, so that warm-up and measurement have the same prefixes.
        prefixes = draw_prompts(lengths, vocab_size, np.random.default_rng(self.num_prefixes))
        chosen = rng.integers(0, self.num_prefixes, num_requests)
        return [
            RequestSpec(np.concatenate((prefixes[which], own.input_ids)), own.num_output_tokens)
            for which, own in zip(chosen, self.own.draw(num_requests, vocab_size, rng), strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """A workload of conversations with `num_turns` requests each.

    Each request includes the conversation's history. `turn` defines the distributions of input
    lengths and output lengths in each turn. Think times are exponentially distributed with mean
    `think_mean_s`. All conversations start with the same `num_prefix_tokens` tokens.
    """

    turn: TokenNormDist
    num_turns: int = 4
    think_mean_s: float = 0.0
    num_prefix_tokens: int = 0

    num_available: ClassVar[None] = None

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        """Draw `num_requests` conversations."""
        opening = SharedPrefix(self.turn, self.num_prefix_tokens)
        return [
            RequestSpec(
                first.input_ids, first.num_output_tokens, turns=self._draw_turns(vocab_size, rng)
            )
            for first in opening.draw(num_requests, vocab_size, rng)
        ]

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def _draw_turns(self, vocab_size: int, rng: np.random.Generator) -> tuple[Turn, ...]:
        num_turns = self.num_turns - 1
        inputs = draw_lengths(self.turn.input_mean, self.turn.input_stdev, num_turns, rng)
        outputs = draw_lengths(self.turn.output_mean, self.turn.output_stdev, num_turns, rng)
        think_times_s = rng.exponential(self.think_mean_s, num_turns)
        prompts = draw_prompts(inputs, vocab_size, rng)
        return tuple(
            Turn(ids, int(num_output_tokens), float(think_s))
            for ids, num_output_tokens, think_s in zip(prompts, outputs, think_times_s, strict=True)
        )
