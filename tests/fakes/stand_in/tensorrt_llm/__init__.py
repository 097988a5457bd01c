"""A stand-in for TensorRT-LLM with the names, rules and shapes that an engine uses.

The environment variable STAND_IN_TRTLLM sets its version. Its model counts up from the prompt's
last token, the second sequence from 100 more, and so on. The prompt's first token may be one of the
commands in `executor`.
"""

from __future__ import annotations

import os

__version__ = os.environ.get("STAND_IN_TRTLLM", "1.2.1")
