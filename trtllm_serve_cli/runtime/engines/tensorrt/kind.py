"""Declare the capabilities of the `tensorrt` engine kind.

This engine kind supports all features for which NVIDIA's `tensorrt_llm` model has inputs.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

_NO_TENSOR = "NVIDIA's tensorrt_llm model has no tensor for this feature"
KIND = RuntimeKind(
    caps.Capabilities(
        unsupported={
            caps.MIN_P: _NO_TENSOR,
            caps.TOP_LOG_PROBABILITIES: _NO_TENSOR,
            caps.PROMPT_LOG_PROBABILITIES: _NO_TENSOR,
            caps.EMBEDDINGS: "NVIDIA's tensorrt_llm model has no output for embeddings",
            **caps.UPSTREAM_ONLY,
        },
        notes={
            caps.LORA: "only if the engine is built with lora_target_modules or lora_dir; "
            "the OpenAI-compatible API sends adapters to the engine by task id",
        },
    )
)
