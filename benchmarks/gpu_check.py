"""The configuration and results of a GPU check."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_models import LLAMA_2_7B, MISTRAL_7B, SMALL

from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.paths import Home, find_home

GPU_MEMORY = 0.9
# The `gpu_device_ids` of a model with two engines.
ENGINE_GPUS = "0;1"
# Smaller token ids are special tokens, or commands of the stand-in for vLLM that --rehearse uses.
FIRST_TOKEN = 1000
# Three of vLLM's blocks of 16 tokens.
_COMMON_PREFIX = 48
# The number of requests before a burst, as in the benchmark of the served model.
_NUM_WARMUP = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the model, the engine and the load."""

    shape: dict[str, Any]
    grouped_shape: dict[str, Any]
    max_batch_size: int = 1024
    max_num_tokens: int = 16384
    max_seq_len: int = 2048
    num_requests: int = 5000
    in_flight: int = 256
    num_streams: int = 1024
    stream_tokens: int = 128
    repeats: int = 7
    greedy_prompts: int = 8
    greedy_tokens: int = 32
    chat_streams: tuple[int, ...] = (1, 64, 256, 1024)
    engine_streams: tuple[int, ...] = (64, 256, 1024, 2048)
    chat_rounds: int = 3
    num_embedded: int = 8192


FULL = Sizes(LLAMA_2_7B, MISTRAL_7B)
SHORT = Sizes(
    {**SMALL, "max_position_embeddings": 2048}, {**SMALL, "max_position_embeddings": 2048},
    max_batch_size=64, max_num_tokens=512, num_requests=200, in_flight=64, num_streams=128,
    stream_tokens=64, repeats=2, greedy_prompts=2, chat_streams=(1, 32), engine_streams=(1, 128),
    chat_rounds=1, num_embedded=128,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """A run: its folder, its Python and its results so far."""

    work: Path
    python: str
    sizes: Sizes
    is_rehearsal: bool
    instances: int | None
    vllm_args: dict[str, Any]
    found: dict[str, Any]
    gpu_memory: float = GPU_MEMORY
    engine_gpus: str = ENGINE_GPUS

    @property
    def home(self) -> Home:
        return find_home({"TLLM_HOME": str(self.work / "home")})

    @property
    def big(self) -> Path:
        return self.work / "big"

    @property
    def grouped(self) -> Path:
        return self.work / "grouped"

    @property
    def small(self) -> Path:
        return self.work / "small"

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Return the engine arguments for vLLM, which are those of the vLLM behind Triton."""
        sizes = self.sizes
        of_weights = (
            {"dtype": "bfloat16", "load_format": "dummy"}
            if folder != self.small
            else {"dtype": "float16"}
        )
        return {
            "model": str(folder), "tokenizer": str(folder),
            "max_num_seqs": sizes.max_batch_size, "max_num_batched_tokens": sizes.max_num_tokens,
            "max_model_len": self.context_of(folder), "gpu_memory_utilization": self.gpu_memory,
            **of_weights, **self.vllm_args,
        }  # fmt: skip

    def context_of(self, folder: Path) -> int:
        return self.sizes.max_seq_len if folder != self.small else SMALL["max_position_embeddings"]

    def save(self) -> None:
        """Write the results so far."""
        (self.work / "gpu.json").write_text(json.dumps(self.found, indent=1))


def draw_burst(check: Check) -> tuple[list[list[int]], list[int]]:
    """Return the requests of `tllm bench token-norm-dist` with seed 0."""
    rng = np.random.default_rng(0).spawn(3)[1]
    vocab_size = check.sizes.shape["vocab_size"]
    specs = TokenNormDist().draw(check.sizes.num_requests, vocab_size, rng)
    return [each.input_ids.tolist() for each in specs], [each.num_output_tokens for each in specs]


def draw_warmup(check: Check) -> list[list[int]]:
    """Return prompts that no measurement uses, because the engine caches prefixes."""
    rng = np.random.default_rng(2)
    vocab_size = check.sizes.shape["vocab_size"]
    prompts: list[list[int]] = rng.integers(FIRST_TOKEN, vocab_size, (_NUM_WARMUP, 128)).tolist()
    return prompts


def draw_prompts(check: Check, number: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng((number, length))
    vocab_size = check.sizes.shape["vocab_size"]
    prompts: list[list[int]] = rng.integers(FIRST_TOKEN, vocab_size, (number, length)).tolist()
    return prompts


def prompt_of(check: Check, length: int) -> list[int]:
    rng = np.random.default_rng(length)
    return [
        int(each) for each in rng.integers(FIRST_TOKEN, check.sizes.shape["vocab_size"], length)
    ]


def greedy_prompts(check: Check) -> list[list[int]]:
    """Return prompts of 64 tokens, in pairs with a common prefix that the engine caches."""
    rng = np.random.default_rng(1)
    shape = (check.sizes.greedy_prompts, 64)
    prompts: list[list[int]] = rng.integers(FIRST_TOKEN, SMALL["vocab_size"], shape).tolist()
    for first, second in zip(prompts[::2], prompts[1::2], strict=True):
        second[:_COMMON_PREFIX] = first[:_COMMON_PREFIX]
    return prompts


def change_early_token(prompts: list[list[int]]) -> list[list[int]]:
    """Return the prompts with another token at position 5."""
    return [
        [*prompt[:5], FIRST_TOKEN + (prompt[5] + 1) % FIRST_TOKEN, *prompt[6:]]
        for prompt in prompts
    ]
