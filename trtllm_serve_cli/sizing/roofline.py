"""Estimate upper limits for a model's speed from memory reads and multiplications.

The limits use the rates that a GPU sustains, not the rates in its data sheet. A GPU reaches its
data-sheet rates only briefly, if at all, because its power limit lowers the clock. An H200
sustained 4.3 of 4.8 TB/s in copies. With the matrices of Llama 2 7B, it sustained 670 of 989
TFLOP/s in bf16 and 1310 of 1979 TFLOP/s in FP8. All other GPUs are assumed to sustain the same
fractions of their data-sheet rates.

The limits do not account for communication between GPUs, and real speeds are lower. On the same
H200, vLLM 0.26 reached 67% of the limit for a single stream and 73% of the saturated limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_serve_cli.sizing.capacity import Demand
from trtllm_serve_cli.sizing.gpus import Gpu
from trtllm_serve_cli.sizing.kv_cache import kv_bytes_of_sequence
from trtllm_serve_cli.sizing.parallelism import Parallelism
from trtllm_serve_cli.sizing.shape import ModelShape
from trtllm_serve_cli.sizing.stages import Stage, split_stages

BANDWIDTH_REACHED = 4.3 / 4.8
# Maps each compute rate field of `Gpu` to the fraction of the data-sheet rate that a GPU sustains.
# FP4 was not measured and uses the FP8 fraction.
COMPUTE_REACHED = {"fp16": 670 / 989, "fp8": 1310 / 1979, "fp4": 1310 / 1979}


@dataclass(frozen=True, slots=True)
class Speed:
    """The upper limits for a model's speed.

    Token rates count output tokens. A request has `input_len` input tokens and `output_len` output
    tokens. `single_stream_tokens_per_s` is the limit for one sequence after its prompt has been
    processed. The saturated limits apply if as many sequences as possible run concurrently.
    """

    single_stream_tokens_per_s: float
    saturated_tokens_per_s: float
    saturated_requests_per_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The parts of an engine step's minimum duration, in seconds.

    The minimum duration is the sum of these times:

    - `step_s`: once per step.
    - `sequence_s`: for each sequence that receives a token.
    - `kv_token_s`: for each token that is read from the KV cache.
    - `prompt_token_s`: for each prompt token.
    - `prompt_pair_s`: for each pair of a prompt token and an earlier token that it attends to.
    """

    step_s: float
    sequence_s: float
    kv_token_s: float
    prompt_token_s: float
    prompt_pair_s: float


def estimate_step_cost(
    shape: ModelShape, parallelism: Parallelism, gpu: Gpu, demand: Demand, num_sequences: int
) -> StepCost:
    """Return the parts of a step's minimum duration.

    For a batch of one sequence and for a batch of all sequences, the sum of the parts is the step
    duration that `estimate_speed` uses. This duration is the time for memory reads or for
    multiplications, whichever is longer. Durations for other batch sizes are interpolated linearly.
    Pipeline stages run in parallel, and each stage processes a share of the sequences, so a step is
    one cycle through all stages.
    """
    stages = split_stages(shape, parallelism)
    costs = [_Cost(shape, parallelism, stage, gpu, demand) for stage in stages]
    batch = _batch_of_stage(parallelism, demand, num_sequences)
    all_at_once = batch * parallelism.pp
    alone_s = sum(cost.step_s(1) for cost in costs)
    together_s = parallelism.pp * max(cost.step_s(batch) for cost in costs)
    context = demand.input_len + demand.output_len // 2
    kv_s = max(cost.kv_s(context) for cost in costs)
    more_s = (together_s - alone_s) / (all_at_once - 1) if all_at_once > 1 else 0.0
    sequence_s = max(0.0, more_s - kv_s)
    slowest = max(costs, key=_Cost.prompt_s)
    tokens_s = slowest.prompt_s(with_attention=False)
    pairs = demand.input_len * demand.input_len / 2
    return StepCost(
        step_s=alone_s - kv_s - sequence_s,
        sequence_s=sequence_s,
        kv_token_s=kv_s / context,
        prompt_token_s=tokens_s / demand.input_len,
        prompt_pair_s=(slowest.prompt_s() - tokens_s) / pairs,
    )


def _batch_of_stage(parallelism: Parallelism, demand: Demand, num_sequences: int) -> int:
    """Return the number of sequences that each stage processes at the same time."""
    return max(1, min(num_sequences, demand.max_batch_size) // parallelism.pp)


def estimate_speed(
    shape: ModelShape, parallelism: Parallelism, gpu: Gpu, demand: Demand, num_sequences: int
) -> Speed:
    """Return the upper limits for a model's speed with up to `num_sequences` sequences."""
    stages = split_stages(shape, parallelism)
    costs = [_Cost(shape, parallelism, stage, gpu, demand) for stage in stages]
    alone = 1 / sum(cost.step_s(1) for cost in costs)
    batch = _batch_of_stage(parallelism, demand, num_sequences)
    round_s = max(
        batch * cost.prompt_s() + demand.output_len * cost.step_s(batch) for cost in costs
    )
    requests_per_s = batch / round_s
    return Speed(alone, requests_per_s * demand.output_len, requests_per_s)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The times, in seconds, that a GPU in a stage needs for steps, KV cache reads and prompts."""

    shape: ModelShape
    parallelism: Parallelism
    stage: Stage
    gpu: Gpu
    demand: Demand

    def step_s(self, batch: int) -> float:
        """Return the time to generate one token for each of `batch` sequences.

        Assume that the KV cache contains each sequence's prompt and half of its output, the average
        over the sequence's decoding steps.
        """
        context = self.demand.input_len + self.demand.output_len // 2
        read = self._weights_read(batch) + batch * self._kv_read(context)
        attention = self._attend(1, context, is_prompt=False)
        multiplied = batch * self._multiply_s(1, attention)
        return max(self._read_s(read), multiplied)

    def kv_s(self, context: int) -> float:
        """Return the time to read the KV cache for a sequence of `context` tokens."""
        return self._read_s(self._kv_read(context))

    def prompt_s(self, *, with_attention: bool = True) -> float:
        """Return the time per prompt if many prompts are processed together.

        The result excludes the time for reading the weights, which is negligible because all
        prompts share each read.
        """
        tokens = self.demand.input_len
        attention = self._attend(tokens, tokens / 2, is_prompt=True) if with_attention else 0.0
        return self._multiply_s(tokens, attention)

    def _read_s(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.bandwidth_gb_per_s * 1e9 * BANDWIDTH_REACHED)

    def _weights_read(self, batch: int) -> float:
        """Return the number of weight bytes that are read for `batch` tokens.

        The tokens are assumed to select experts at random.
        """
        stage, demand, experts = self.stage, self.demand, self.shape.experts
        share = 0.0
        if experts:
            chosen = experts.num_experts_per_token / experts.num_experts
            share = max(1 - (1 - chosen) ** batch, self.parallelism.moe_ep / experts.num_experts)
        large = (stage.matrices + share * stage.experts) * demand.weights.bits
        rest = (stage.replicated + stage.head_read) * demand.others.bits
        return demand.scale * (large + rest) / 8

    def _kv_read(self, context: int) -> float:
        return kv_bytes_of_sequence(
            self.shape,
            context,
            self.demand.kv.bits,
            tp=self.parallelism.tp,
            num_layers=self.stage.num_layers,
        )

    def _multiply_s(self, num_tokens: int, attention: float) -> float:
        """Return the time for multiplications, with two operations for each parameter and token.

        The LM head processes only one token. `attention` is the number of attention operations,
        which run at the 16-bit rate.
        """
        stage, experts, weights = self.stage, self.shape.experts, self.demand.weights
        chosen = experts.num_experts_per_token / experts.num_experts if experts else 0.0
        matrices = 2 * num_tokens * (stage.matrices + chosen * stage.experts)
        other = attention + 2 * (num_tokens * stage.replicated + stage.head_read)
        rate = weights.rate if getattr(self.gpu, weights.rate) else "fp16"
        sustained = self._sustained(rate) * weights.speed
        return matrices / sustained + other / self._sustained("fp16")

    def _sustained(self, rate: str) -> float:
        """Return the GPU's sustained operations per second at the given precision."""
        return float(getattr(self.gpu, rate)) * COMPUTE_REACHED[rate] * 1e12

    def _attend(self, num_tokens: int, context: float, *, is_prompt: bool) -> float:
        """Return the number of attention operations.

        Each of `num_tokens` tokens attends to `context` tokens.
        """
        latent, per_head = self.shape.latent, 4 * self.shape.head_dim
        if latent and is_prompt:
            per_head = 2 * (self.shape.head_dim + latent.v_head_dim)
        elif latent:
            # A decoding step computes attention on the cached latent, without expanding it to keys
            # and values.
            per_head = 2 * (2 * latent.kv_lora_rank + latent.qk_rope_head_dim)
        heads = self.shape.num_attention_heads / self.parallelism.tp
        return num_tokens * context * heads * per_head * self.stage.num_layers
