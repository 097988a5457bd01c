"""Record the progress of a request in OpenVINO GenAI's pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine import GenerationRequest


@dataclass(slots=True)
class RunningRequest:
    """A request in the pipeline. `handle` is the pipeline's handle for the request."""

    request: GenerationRequest
    handle: Any
    num_reused_blocks: int
    cum_log_prob: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    num_tokens: int = 0
    num_steps: int = 0
    is_paused: bool = False
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
