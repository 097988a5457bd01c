"""The engine kind `tensorrt`: TensorRT engines, run by Triton's C++ backend.

Its capabilities are those that NVIDIA documents for the model `tensorrt_llm`.
"""

from __future__ import annotations

from .. import capabilities as caps
from ..kinds import RuntimeKind

KIND = RuntimeKind(caps.Capabilities())
