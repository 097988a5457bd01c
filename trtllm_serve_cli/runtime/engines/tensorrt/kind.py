"""The engine kind `tensorrt`: TensorRT engines, run by Triton's C++ backend.

It supports all features, because `FEATURES` are the features of NVIDIA's model `tensorrt_llm`.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

KIND = RuntimeKind(caps.Capabilities())
