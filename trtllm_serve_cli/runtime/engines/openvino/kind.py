"""Declare the capabilities of the engine kind `openvino`, and load its engine."""

from __future__ import annotations

from typing import Any

from ...engine import Engine
from ...lora.adapter_engine import load_with_adapters
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..embedder import Embedder
from ..kinds import RuntimeKind
from ..worker_config import scheduler_config

_OWN_DRAFTS = "the engine drafts tokens itself if the model is served with num_draft_tokens"
_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "OpenVINO GenAI uses one top-p for the whole response",
        caps.TOP_LOG_PROBABILITIES: (
            "OpenVINO GenAI returns only the log probability of the selected token"
        ),
        caps.LOGITS: "OpenVINO GenAI does not return logits",
        caps.EMBEDDING_BIAS: "OpenVINO GenAI does not accept a bias on its logits",
        caps.CLIENT_DRAFTS: _OWN_DRAFTS,
        caps.LOOKAHEAD_DECODING: _OWN_DRAFTS,
        caps.PROMPT_TUNING: "OpenVINO GenAI accepts only token ids",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "OpenVINO GenAI evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "one process runs both phases",
        **caps.UPSTREAM_ONLY,
    },
    notes={
        caps.EMBEDDINGS: "of models in the format of sentence-transformers",
        caps.PROMPT_LOG_PROBABILITIES: (
            "with alternatives; only for at most one token of response at temperature 0 and "
            "without adapters; the first such request loads a second copy of the model"
        ),
        caps.PENALTIES: "presence and frequency penalties from -2 to 2; not with beams",
        caps.SEVERAL_SEQUENCES: "not streamed; all sequences are returned when the request ends",
        caps.BEAM_SEARCH: "all beams are returned when the request ends",
        caps.DIVERSE_BEAMS: "diverse beam search with one group per beam",
        caps.STOP_AND_BAD_WORDS: (
            "matched in the text, regardless of tokenization; bad words are not supported with "
            "guided decoding"
        ),
        caps.GUIDED_DECODING: "a guide that takes more than 2 s to compile is rejected",
        caps.PERFORMANCE_METRICS: "reused blocks are estimated from earlier prompts",
        caps.LORA: (
            "also by `lora_name`; each loaded adapter (max_loras) needs a copy of the model in "
            "memory and has its own batch and KV cache"
        ),
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    return scheduler_config(parameters) | {
        "max_beam_width": parameters.number("max_beam_width"),
        "lora_prefetch_dir": parameters.text("lora_prefetch_dir", ""),
        "max_loras": parameters.number("max_loras", 4),
        "lora_cache_max_adapter_size": parameters.number("lora_cache_max_adapter_size", 64),
        "lora_cache_host_memory_bytes": parameters.number("lora_cache_host_memory_bytes", 1 << 30),
        "num_threads": parameters.number("num_threads", 0),
        "num_draft_tokens": parameters.number("num_draft_tokens", 0),
        "draft_model_dir": parameters.text("draft_model_dir", ""),
    }


def _load(config: dict[str, Any]) -> Engine:
    from .engine import OpenVinoEngine
    from .lora import site_finder

    return load_with_adapters(OpenVinoEngine, site_finder(config), config)


def _load_embedder(config: dict[str, Any]) -> Embedder:
    from .embedder import OpenVinoEmbedder

    return OpenVinoEmbedder(config)


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load, load_embedder=_load_embedder)
