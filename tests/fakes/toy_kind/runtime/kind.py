"""The engine kind `toy` inside Triton."""

from __future__ import annotations

from typing import Any

from ...engine import Engine
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..kinds import RuntimeKind

_CAPABILITIES = caps.Capabilities(
    unsupported=dict.fromkeys((caps.BEAM_SEARCH, caps.LORA, caps.GUIDED_DECODING), "it is a toy")
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    return {
        "max_batch_size": parameters.number("max_num_seqs"),
        "max_seq_len": parameters.number("max_seq_len"),
        "vocab_size": parameters.number("vocab_size"),
    }


def _load(config: dict[str, Any]) -> Engine:
    from .engine import ToyEngine

    return ToyEngine(config)


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load)
