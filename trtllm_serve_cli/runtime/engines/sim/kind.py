"""Declare the capabilities of the `sim` engine kind and load its engine."""

from __future__ import annotations

from typing import Any

from ...engine import Engine
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..embedder import Embedder
from ..kinds import RuntimeKind
from ..worker_config import scheduler_config

_NO_MODEL = "a simulated engine has no model"
_MADE_UP = "made-up values that depend only on the token and its predecessor"
_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: _NO_MODEL,
        caps.BEAM_SEARCH: _NO_MODEL,
        caps.DIVERSE_BEAMS: _NO_MODEL,
        caps.GUIDED_DECODING: _NO_MODEL,
        caps.LOGITS: _NO_MODEL,
        caps.LORA: _NO_MODEL,
        caps.CLIENT_DRAFTS: "each step generates one token per sequence",
        caps.LOOKAHEAD_DECODING: "each step generates one token per sequence",
        caps.PROMPT_TUNING: _NO_MODEL,
        caps.MULTIMODAL: "only text models are simulated",
        caps.ENCODERS: "only models without an encoder are simulated",
        caps.KV_CACHE_RETENTION: "the engine evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "a single engine runs both context and generation",
        **caps.UPSTREAM_ONLY,
    },
    notes={
        caps.EMBEDDINGS: "made-up values that depend only on the tokens",
        caps.SAMPLING: "draws tokens from the prompt using the seed; ignores other parameters",
        caps.MIN_P: "accepted and ignored",
        caps.PENALTIES: "accepted and ignored",
        caps.LOG_PROBABILITIES: _MADE_UP,
        caps.TOP_LOG_PROBABILITIES: _MADE_UP,
        caps.PROMPT_LOG_PROBABILITIES: _MADE_UP,
        caps.EMBEDDING_BIAS: "100 forces a token, -100 bans it, and smaller biases are ignored",
        caps.STOP_AND_BAD_WORDS: "matched as tokens",
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    return scheduler_config(parameters) | {
        "enable_chunked_context": parameters.flag("enable_chunked_context", False),
        "batch_scheduler_policy": parameters.text("batch_scheduler_policy", "guaranteed_no_evict"),
    }


def _load(config: dict[str, Any]) -> Engine:
    from .engine import SimEngine

    return SimEngine(config)


def _load_embedder(config: dict[str, Any]) -> Embedder:
    from .embedder import SimEmbedder

    return SimEmbedder(config)


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load, load_embedder=_load_embedder)
