"""Choose an engine's default limits for a model and a GPU.

Small limits leave a fast GPU underused. We measured vLLM 0.26 on an H200 with a model the size of
Llama 2 7B: it served 235 requests per second with limits of 256 sequences and 8192 tokens per step,
and 246 requests per second with limits of 1024 sequences and 16384 tokens per step.

Large limits cause pauses on a slow GPU, because a step with many prompt tokens delays the next
token of all other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.sizing.capacity import Demand, Memory
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.kv_cache import kv_bytes_of_sequence
from trtllm_serve_cli.sizing.parallelism import Parallelism
from trtllm_serve_cli.sizing.roofline import estimate_step_cost
from trtllm_serve_cli.sizing.shape import ModelShape
from trtllm_serve_cli.sizing.stages import split_stages

# Maximum estimated duration of a step that processes only prompts. The estimate for 16384 tokens
# of Llama 2 7B on an H200 is 0.33 s.
_STEP_S = 0.35
_MIN_TOKENS, _MAX_TOKENS = 2048, 16384
_MIN_UNSPLIT_TOKENS = 8192
_MIN_SEQUENCES, _MAX_SEQUENCES = 256, 1024
# Minimum KV cache space per sequence, in tokens. With less space, the engine would repeatedly
# preempt and recompute sequences.
_TOKENS_PER_SEQUENCE = 128


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """The maximum number of sequences in a batch and the maximum number of tokens per step."""

    max_num_seqs: int
    max_num_tokens: int

    @property
    def max_unsplit_tokens(self) -> int:
        """The value of `max_num_tokens` for engines that reject prompts with more tokens.

        By default, TensorRT-LLM does not split a long prompt into several steps. The limit is
        therefore at least 8192, TensorRT-LLM's default, even on a slow GPU.
        """
        return max(self.max_num_tokens, _MIN_UNSPLIT_TOKENS)


def choose_limits(
    shape: ModelShape, parallelism: Parallelism, gpu: Gpu, demand: Demand, memory: Memory
) -> ServingLimits:
    """Return the default limits for a model that uses `memory` on each GPU.

    Both limits are powers of two. `max_num_tokens` is the largest power from 2048 to 16384 for
    which a step that processes only prompts takes an estimated 0.35 s or less. `max_num_seqs` is
    the largest power from 256 to 1024 that leaves room for 128 tokens per sequence in the KV cache.
    If no power in the range meets the condition, the limit is the smallest power.
    """
    cost = estimate_step_cost(shape, parallelism, gpu, demand, max(1, memory.num_sequences))
    sequence_bytes = max(
        kv_bytes_of_sequence(
            shape,
            _TOKENS_PER_SEQUENCE,
            demand.kv.bits,
            tp=parallelism.tp,
            num_layers=stage.num_layers,
        )
        for stage in split_stages(shape, parallelism)
    )
    max_sequences = memory.kv_cache / sequence_bytes
    max_tokens = _STEP_S / cost.prompt_token_s
    return ServingLimits(
        max_num_seqs=_largest_power(_MIN_SEQUENCES, _MAX_SEQUENCES, max_sequences),
        max_num_tokens=_largest_power(_MIN_TOKENS, _MAX_TOKENS, max_tokens),
    )


def _largest_power(least: int, most: int, limit: float) -> int:
    """Return the largest power of two from `least` to `most` that does not exceed `limit`.

    Return `least` if all powers exceed `limit`.
    """
    value = most
    while value > least and value > limit:
        value //= 2
    return value
