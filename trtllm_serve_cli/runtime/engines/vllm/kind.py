"""Declare the capabilities of the `vllm` engine kind and load its engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from ...engine import Engine
from ...gpu_environment import choose_gpus
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..embedder import Embedder
from ..kinds import RuntimeKind
from ..worker_config import llm_config
from .arguments import VLLM_ARGUMENTS

_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "the engine uses one top-p for the whole response",
        caps.BEAM_SEARCH: "vLLM's engine does not support beam search",
        caps.DIVERSE_BEAMS: "vLLM's engine does not support beam search",
        caps.LOGITS: "logits are too large to send from the engine worker to Triton",
        caps.CLIENT_DRAFTS: (
            "the engine generates draft tokens itself if the model is served with "
            "speculative_config in vllm_args"
        ),
        caps.LOOKAHEAD_DECODING: "only TensorRT engines support lookahead decoding",
        caps.PROMPT_TUNING: "only token ids are passed to the engine",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "vLLM evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "a single engine runs both context and generation",
        **caps.UPSTREAM_ONLY,
    },
    notes={
        caps.EMBEDDINGS: "for models in the sentence-transformers format",
        caps.SAMPLING: "temperatures up to 2",
        caps.PENALTIES: "presence and frequency penalties from -2 to 2",
        caps.STOP_AND_BAD_WORDS: "matched as tokens",
        caps.MIN_P: "not with speculative decoding",
        caps.EMBEDDING_BIAS: "not with speculative decoding",
        caps.PROMPT_LOG_PROBABILITIES: "the KV cache is not reused for the prompt",
        caps.GUIDED_DECODING: "uses the tokenizer's end token if the request does not set one",
        caps.PERFORMANCE_METRICS: "block counts are estimated from token counts",
        caps.LORA: (
            "only if the model is imported with max_lora_rank; adapters can also be selected by "
            "`lora_name`"
        ),
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    entries = {name: parameters.text(name, "") for name in VLLM_ARGUMENTS.parameters}
    config = llm_config(VLLM_ARGUMENTS.read(entries), parameters)
    return {**config, "batch_invariant": parameters.flag("batch_invariant", False)}


def set_batch_invariance(environ: MutableMapping[str, str], config: Mapping[str, Any]) -> None:
    """Set VLLM_BATCH_INVARIANT if `config` enables batch invariance.

    With batch invariance, a response does not depend on the other requests in the batch. If batch
    invariance is not enabled, leave the variable unchanged, because the user may have set it.
    """
    if config.get("batch_invariant"):
        environ["VLLM_BATCH_INVARIANT"] = "1"


def _import_packages(config: dict[str, Any]) -> None:
    # Set the environment variables before the import, because CUDA and vLLM may read them during
    # the import.
    choose_gpus(os.environ, config["gpu_device_ids"])
    set_batch_invariance(os.environ, config)
    from . import engine  # noqa: F401


def _load(config: dict[str, Any]) -> Engine:
    from .engine import VllmEngine

    return VllmEngine(config)


def _load_embedder(config: dict[str, Any]) -> Embedder:
    choose_gpus(os.environ, config["gpu_device_ids"])
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from .embedder import VllmEmbedder

    return VllmEmbedder(config)


KIND = RuntimeKind(
    _CAPABILITIES,
    _worker_config,
    _load,
    load_embedder=_load_embedder,
    import_packages=_import_packages,
)
