"""Load OpenVINO GenAI's pipeline for an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai

from ...lora.adapter import Adapter
from .lora import adapter_properties
from .threads import thread_properties


def load_pipeline(
    engine_dir: Path, config: dict[str, Any], num_blocks: int, adapter: Adapter | None
) -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_blocks
    scheduler.max_num_seqs = int(config["max_batch_size"])
    scheduler.max_num_batched_tokens = int(config["max_num_tokens"])
    scheduler.enable_prefix_caching = reuses_blocks(config)
    properties = thread_properties(int(config["num_threads"]))
    if _uses_draft_model(config):
        draft = _find_model(Path(config["draft_model_dir"]), "the draft model")
        properties["draft_model"] = openvino_genai.draft_model(draft, "CPU")
    elif config["num_draft_tokens"]:
        properties["prompt_lookup"] = True
    if adapter is not None:
        properties |= adapter_properties(adapter)
    model = _find_model(engine_dir, "the engine")
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)


def reuses_blocks(config: dict[str, Any]) -> bool:
    # Do not reuse KV cache blocks if a draft model is used, because sampling would fail (observed
    # with OpenVINO GenAI 2026.4.1).
    return bool(config["enable_kv_cache_reuse"] and not _uses_draft_model(config))


def _uses_draft_model(config: dict[str, Any]) -> bool:
    return bool(config["num_draft_tokens"] and config["draft_model_dir"])


def _find_model(directory: Path, description: str) -> Path:
    if not (directory / "openvino_model.xml").exists():
        raise FileNotFoundError(
            f"{directory} does not contain openvino_model.xml; rebuild {description}"
        )
    return directory
