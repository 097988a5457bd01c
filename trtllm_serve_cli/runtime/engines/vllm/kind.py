"""vLLM: `vllm`."""

from __future__ import annotations

import os
from typing import Any

from ...engine import Engine
from ...gpu_environment import choose_gpus
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..kinds import RuntimeKind
from ..worker_config import llm_config
from .arguments import VLLM_ARGUMENTS

_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "requests reach it with one top-p for the whole answer",
        caps.BEAM_SEARCH: "vLLM's engine has no beam search",
        caps.DIVERSE_BEAMS: "vLLM's engine has no beam search",
        caps.LOGITS: "they would not fit between the engine's process and Triton's",
        caps.EMBEDDING_BIAS: "requests reach it without one",
        caps.CALLER_DRAFTS: (
            "it drafts by itself, when served with speculative_config in vllm_args"
        ),
        caps.LOOKAHEAD_DECODING: "TensorRT-LLM has it for its own engines only",
        caps.PROMPT_TUNING: "requests reach it as token ids alone",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "vLLM evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "one engine does both phases",
    },
    notes={
        caps.SAMPLING: "temperatures up to 2",
        caps.PENALTIES: "presence and frequency penalties from -2 to 2",
        caps.STOP_AND_BAD_WORDS: "as tokens",
        caps.GUIDED_DECODING: (
            "an answer whose request names no end token ends with the tokenizer's"
        ),
        caps.PERFORMANCE_FIGURES: "blocks are deduced from the numbers of tokens",
        caps.LORA: "by `lora_name`, too, of a model imported with max_lora_rank",
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    entries = {name: parameters.text(name, "") for name in VLLM_ARGUMENTS.parameters}
    return llm_config(VLLM_ARGUMENTS.read(entries), parameters)


def _load(config: dict[str, Any]) -> Engine:
    # CUDA reads the environment when the package is imported.
    choose_gpus(os.environ, config["gpu_device_ids"])
    from .engine import VllmEngine

    return VllmEngine(config)


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load)
