"""Run the embedded engine in this process, without a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtllm_serve_cli.runtime.engine import GenerationRequest, SequenceUpdate


def load(engine_dir: Path, **config: Any) -> Any:
    from trtllm_serve_cli.runtime.engines.openvino.engine import OpenVinoEngine

    return OpenVinoEngine(
        {
            "engine_dir": str(engine_dir),
            "max_batch_size": 16,
            "max_beam_width": 4,
            "max_seq_len": 1024,
            "max_num_tokens": 256,
            "max_tokens_in_paged_kv_cache": 8192,
            "enable_kv_cache_reuse": True,
            "vocab_size": 49152,
            "num_threads": 0,
            "num_draft_tokens": 0,
            "draft_model_dir": "",
            **config,
        }
    )


def run(engine: Any, *requests: GenerationRequest) -> list[list[SequenceUpdate]]:
    """Run the requests together and return the updates of each."""
    for request in requests:
        engine.submit(request)
    updates: list[SequenceUpdate] = []
    while engine.has_work():
        updates += engine.step()
    return [[each for each in updates if each.request_id == request.id] for request in requests]


def tokens(updates: list[SequenceUpdate], sequence: int = 0) -> list[int]:
    return [
        token for each in updates if each.sequence_index == sequence for token in each.token_ids
    ]
