"""Compute embeddings with vLLM.

This module requires the package `vllm` and is written for version 0.26. vLLM pools and normalizes
embeddings as configured in the checkpoint's `modules.json`. Source: docs/models/pooling_models.md
and vllm/entrypoints/llm.py in vllm-project/vllm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm import LLM

from ...embedding import Vector
from ..engine_arguments import explaining_rejections


class VllmEmbedder:
    """An embedding model that vLLM runs on GPUs.

    `config` contains engine_dir (the checkpoint), max_batch_size, max_num_tokens, max_seq_len,
    gpu_memory_fraction (empty for vLLM's default) and llm (additional engine arguments for vLLM).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        max_seq_len = int(config["max_seq_len"])
        arguments = {
            "model": config["engine_dir"],
            "runner": "pooling",
            "max_model_len": max_seq_len,
            "max_num_seqs": int(config["max_batch_size"]),
            # vLLM cannot split an encoder's prompt across several steps.
            "max_num_batched_tokens": max(int(config["max_num_tokens"]), max_seq_len),
            **config["llm"],
        }
        if fraction := config["gpu_memory_fraction"]:
            arguments["gpu_memory_utilization"] = float(fraction)
        with explaining_rejections("vLLM"):
            self._llm: Any = LLM(**arguments)

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        """Compute the embeddings of a batch of prompts.

        Return an array of shape [prompts, dimension].
        """
        inputs = [{"prompt_token_ids": list(each)} for each in prompts]
        outputs = self._llm.embed(inputs, use_tqdm=False)
        return np.array([each.outputs.embedding for each in outputs], dtype=np.float32)

    def close(self) -> None:
        """Stop vLLM's processes to release the GPUs."""
        self._llm.llm_engine.engine_core.shutdown()
