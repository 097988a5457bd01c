"""Declare the capabilities of the engine kind `tensorrt`.

This engine kind supports all features with tensors, because `FEATURES` lists the features of
NVIDIA's model `tensorrt_llm`.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

_NO_TENSOR = "NVIDIA's model tensorrt_llm has no tensor for it"
KIND = RuntimeKind(
    caps.Capabilities(
        unsupported={
            caps.MIN_P: _NO_TENSOR,
            caps.TOP_LOG_PROBABILITIES: _NO_TENSOR,
            caps.PROMPT_LOG_PROBABILITIES: _NO_TENSOR,
            caps.EMBEDDINGS: "NVIDIA's model tensorrt_llm has no output for them",
            **caps.UPSTREAM_ONLY,
        }
    )
)
