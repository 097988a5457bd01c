"""TensorRT engines, run by Triton's C++ backend: `tensorrt`.

What the backend can do is what NVIDIA documents of `tensorrt_llm`.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

KIND = RuntimeKind(caps.Capabilities())
