"""OpenVINO GenAI's continuous batching: `openvino`."""

from __future__ import annotations

from typing import Any

from ...engine import Engine
from ...lora.adapter_engine import load_with_adapters
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..kinds import RuntimeKind
from ..worker_config import scheduler_config

_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "OpenVINO GenAI samples with one top-p for the whole answer",
        caps.LOGITS: "OpenVINO GenAI keeps the logits to itself",
        caps.EMBEDDING_BIAS: "OpenVINO GenAI takes no bias on its logits",
        caps.CALLER_DRAFTS: "it drafts by itself, when served with num_draft_tokens",
        caps.LOOKAHEAD_DECODING: "it drafts by itself, when served with num_draft_tokens",
        caps.PROMPT_TUNING: "OpenVINO GenAI takes token ids alone",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "OpenVINO GenAI evicts the least recently used blocks first",
        caps.DISAGGREGATED_SERVING: "one process does both phases",
    },
    notes={
        caps.PENALTIES: "presence and frequency penalties from -2 to 2; no penalties with beams",
        caps.SEVERAL_SEQUENCES: "streams them when they end, not token by token",
        caps.BEAM_SEARCH: "the beams arrive together, when they end",
        caps.DIVERSE_BEAMS: "as diverse beam search with a group for each beam",
        caps.STOP_AND_BAD_WORDS: (
            "they work on the text, so however a word is tokenised; bad words not together "
            "with guided decoding"
        ),
        caps.GUIDED_DECODING: "a guide that takes over 2 s to compile is refused",
        caps.PERFORMANCE_FIGURES: "reused blocks are deduced from the prompts seen",
        caps.LORA: (
            "by `lora_name`, too; each loaded adapter (max_loras) takes a copy of the model's "
            "memory, and has its own batch and KV cache"
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


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load)
