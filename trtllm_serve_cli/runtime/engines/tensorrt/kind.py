"""Declare the capabilities of the engine kind `tensorrt`.

This engine kind supports all features, because `FEATURES` lists the features of NVIDIA's model
`tensorrt_llm`.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

KIND = RuntimeKind(caps.Capabilities(unsupported=caps.UPSTREAM_ONLY))
