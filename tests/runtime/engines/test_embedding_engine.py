"""The engine that batches the prompts of embeddings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.embedding import Vector, decode_vector
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engine import EngineLimits, GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.engines.embedding_engine import (
    EmbeddingEngine,
    choose_batch,
    load_embedding_engine,
)
from trtllm_serve_cli.runtime.engines.sim.embedder import SimEmbedder
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation, StepTiming
from trtllm_serve_cli.runtime.request_check import check_request
from trtllm_serve_cli.runtime.worker.worker_main import load_engine

CONFIG = {"max_batch_size": 3, "max_num_tokens": 12, "max_seq_len": 8, "vocab_size": 100}


class SumEmbedder:
    """Returns the sum and the number of a prompt's tokens, and records the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def embed(self, prompts: Sequence[Sequence[int]]) -> Vector:
        self.batches.append([len(each) for each in prompts])
        return np.array([[sum(each), len(each)] for each in prompts], dtype=np.float32)

    def close(self) -> None:
        self.batches.append([])


def request(number: int, length: int) -> GenerationRequest:
    return GenerationRequest(number, (number,) * length, 0)


_LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=20)


@given(_LENGTHS, st.integers(1, 5), st.integers(1, 30))
def test_batch_has_the_oldest_request_and_respects_the_limits(
    lengths: list[int], max_batch_size: int, max_num_tokens: int
) -> None:
    waiting = [request(number, length) for number, length in enumerate(lengths)]
    batch = choose_batch(waiting, max_batch_size, max_num_tokens)
    sizes = [len(each.input_ids) for each in batch]
    assert batch[0] is waiting[0]
    assert len({each.id for each in batch}) == len(batch) <= max_batch_size
    assert len(batch) == 1 or max(sizes) * len(batch) <= max_num_tokens


@given(_LENGTHS)
def test_each_request_receives_its_embedding(lengths: list[int]) -> None:
    embedder = SumEmbedder()
    engine = EmbeddingEngine(embedder, CONFIG)
    for number, length in enumerate(lengths, 1):
        engine.submit(request(number, length))
    found = {}
    while engine.has_work():
        for update in engine.step():
            assert update.finish_reason == "stop"
            found[update.request_id] = decode_vector(update.embedding).tolist()
    assert found == {number: [number * length, length] for number, length in enumerate(lengths, 1)}
    assert max(map(len, embedder.batches)) <= CONFIG["max_batch_size"]


def test_similar_lengths_are_batched() -> None:
    embedder = SumEmbedder()
    engine = EmbeddingEngine(embedder, CONFIG)
    for number, length in enumerate((2, 8, 3, 2), 1):
        engine.submit(request(number, length))
    engine.step()
    assert embedder.batches == [[2, 2, 3]]
    assert (engine.stats().active_requests, engine.stats().iteration) == (1, 1)


def test_cancelled_requests_are_not_computed() -> None:
    embedder = SumEmbedder()
    engine = EmbeddingEngine(embedder, CONFIG)
    engine.submit(request(1, 2))
    engine.cancel(1)
    engine.cancel(7)
    assert not engine.has_work()
    engine.close()
    assert embedder.batches == [[]]


@pytest.mark.parametrize(
    ("ids", "max_new_tokens", "message"),
    [
        ((1,), 1, "computes embeddings and does not generate tokens"),
        ((1,) * 9, 0, r"has 9 tokens, but this model accepts at most 8 tokens \(max_seq_len\)"),
        ((100,), 0, "input_ids contains 100, which is not a token id of this model"),
        ((), 0, "input_ids is empty"),
    ],
)
def test_requests_are_checked(ids: tuple[int, ...], max_new_tokens: int, message: str) -> None:
    limits = EmbeddingEngine(SumEmbedder(), CONFIG).limits
    check_request(GenerationRequest(1, (1,) * 8, 0), limits)
    with pytest.raises(InvalidRequest, match=message):
        check_request(GenerationRequest(1, ids, max_new_tokens), limits)


def test_a_generating_engine_rejects_embeddings() -> None:
    with pytest.raises(InvalidRequest, match="request at least 1 token"):
        check_request(GenerationRequest(1, (1,), 0), EngineLimits(8, 1, 100))


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    timing = Simulation(StepTiming(0.0001)).to_json()
    (tmp_path / "simulation.json").write_text(json.dumps(timing))
    settings = {"dimension": 16, "is_normalized": True}
    return {**CONFIG, "engine_dir": str(tmp_path), "embedding": settings}


def test_simulated_embeddings_depend_on_the_tokens(config: dict[str, Any]) -> None:
    embedder = SimEmbedder(config)
    one, same, near, far = embedder.embed([(1, 2, 3), (1, 2, 3), (1, 2, 4), (7, 8, 9)])
    assert one.tolist() == same.tolist()
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    assert one @ near > one @ far
    config["embedding"]["is_normalized"] = False
    assert np.linalg.norm(SimEmbedder(config).embed([(1, 2, 3)])) > 1.1


def test_the_configuration_selects_the_engine(config: dict[str, Any]) -> None:
    engine = load_engine("sim", config)
    assert engine.limits.computes_embeddings
    assert EmbeddingSettings.from_dict(config["embedding"]).dimension == 16
    with pytest.raises(ValueError, match="tensorrt engine kind does not compute embeddings"):
        load_embedding_engine("tensorrt", config)
