"""Test the inputs and outputs of vLLM's pooling models with a fake vLLM."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fakes.stand_in_engines import engines_on
from trtllm_serve_cli.runtime.embedding import decode_vector
from trtllm_serve_cli.runtime.engine import GenerationRequest
from trtllm_serve_cli.runtime.engines.embedding_engine import load_embedding_engine

CONFIG: dict[str, Any] = {
    "engine_dir": "/m",
    "max_batch_size": 3,
    "max_num_tokens": 64,
    "max_seq_len": 128,
    "vocab_size": 1000,
    "gpu_device_ids": ["1"],
    "gpu_memory_fraction": "0.5",
    "llm": {"tensor_parallel_size": 2},
}


def test_embeddings_are_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setenv("TRTLLM_VISIBLE_DEVICES", "")
    with engines_on(
        "engines.vllm.embedder",
        "VllmEmbedder",
        "vllm.v1.engine.core_client",
        "VLLM_NO_USAGE_STATS",
        monkeypatch,
    ) as load:
        engine = load_embedding_engine("vllm", CONFIG)
        load.engines.append(engine)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
        for number in (1, 2, 3, 4):
            engine.submit(GenerationRequest(number, (number,) * number, 0))
        updates = [*engine.step(), *engine.step()]
        found = {each.request_id: decode_vector(each.embedding).tolist() for each in updates}
        assert found == {1: [1, 1], 2: [4, 2], 3: [9, 3], 4: [16, 4]}
        assert (
            vars(load.client.config.arguments).items()
            >= {
                "model": "/m",
                "max_model_len": 128,
                "max_num_seqs": 3,
                "max_num_batched_tokens": 128,
                "gpu_memory_utilization": 0.5,
                "tensor_parallel_size": 2,
            }.items()
        )
