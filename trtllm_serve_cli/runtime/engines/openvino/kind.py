"""Declare the capabilities of the `openvino` engine kind and load its engine."""

from __future__ import annotations

from typing import Any

from ...engine import Engine
from ...lora.adapter_engine import load_with_adapters
from ...openvino_package import import_openvino
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..embedder import Embedder
from ..kinds import RuntimeKind
from ..worker_config import scheduler_config

_OWN_DRAFTS = (
    "the engine generates draft tokens itself if the model is served with num_draft_tokens"
)
_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "OpenVINO GenAI uses one top-p for the whole response",
        caps.TOP_LOG_PROBABILITIES: (
            "OpenVINO GenAI returns only the log probability of the selected token"
        ),
        caps.LOGITS: "OpenVINO GenAI does not return logits",
        caps.EMBEDDING_BIAS: "OpenVINO GenAI does not support a logit bias",
        caps.CLIENT_DRAFTS: _OWN_DRAFTS,
        caps.LOOKAHEAD_DECODING: _OWN_DRAFTS,
        caps.PROMPT_TUNING: "OpenVINO GenAI accepts only token ids",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "OpenVINO GenAI evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "a single process runs both context and generation",
        **caps.UPSTREAM_ONLY,
    },
    notes={
        caps.EMBEDDINGS: "for models in the sentence-transformers format",
        caps.PROMPT_LOG_PROBABILITIES: (
            "includes alternatives; requires temperature 0, at most one response token and no "
            "adapter; the first such request loads a second copy of the model"
        ),
        caps.PENALTIES: "presence and frequency penalties from -2 to 2; not with beam search",
        caps.SEVERAL_SEQUENCES: "not streamed; all sequences are returned when the request ends",
        caps.BEAM_SEARCH: "all beams are returned when the request ends",
        caps.DIVERSE_BEAMS: "diverse beam search with one group per beam",
        caps.STOP_AND_BAD_WORDS: (
            "matched in the text, regardless of tokenization; bad words are not supported with "
            "guided decoding"
        ),
        caps.GUIDED_DECODING: (
            "a guide that takes more than 2 s to compile, or slows down other requests, is rejected"
        ),
        caps.PERFORMANCE_METRICS: "the number of reused blocks is estimated from earlier prompts",
        caps.LORA: (
            "adapters can also be selected by `lora_name`; each loaded adapter (max_loras) needs a "
            "copy of the model in memory and has its own batch and KV cache"
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


def _import_packages(config: dict[str, Any]) -> None:
    import_openvino()
    from . import engine  # noqa: F401


def _load(config: dict[str, Any]) -> Engine:
    from .engine import OpenVinoEngine
    from .lora import site_finder

    return load_with_adapters(OpenVinoEngine, site_finder(config), config)


def _load_embedder(config: dict[str, Any]) -> Embedder:
    from .embedder import OpenVinoEmbedder

    return OpenVinoEmbedder(config)


KIND = RuntimeKind(
    _CAPABILITIES,
    _worker_config,
    _load,
    load_embedder=_load_embedder,
    import_packages=_import_packages,
)
