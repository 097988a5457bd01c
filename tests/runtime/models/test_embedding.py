"""The model of the embedding layout on a real worker with a simulated engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes import tokenizer, triton_utils
from tests.fakes.triton_utils import Request
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engines.sim.embedder import SimEmbedder
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation, StepTiming

SETTINGS = EmbeddingSettings(8, is_normalized=True, is_matryoshka=True, prompts={"query": "Q:"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("engine")
    simulation = Simulation(StepTiming(0.0001)).to_json()
    (folder / "simulation.json").write_text(json.dumps(simulation))
    return folder


@pytest.fixture(scope="module")
def model(folder: Any) -> Iterator[Any]:
    parameters = {
        "engine_kind": "sim",
        "embedding": SETTINGS.to_json(),
        "gpt_model_path": str(folder),
        "tokenizer_dir": str(folder),
        "max_num_seqs": "4",
        "max_seq_len": "12",
        "max_num_tokens": "64",
        "vocab_size": "256",
        "engine_python": sys.executable,
    }
    config = {
        "input": [{"name": "text_input"}, {"name": "input_ids"}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }
    args = {"model_config": json.dumps(config), "model_name": "mine", "model_version": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        patch.setitem(sys.modules, "transformers", tokenizer)
        from trtllm_serve_cli.runtime.models.embedding import TritonPythonModel

        model = TritonPythonModel()
        model.initialize(args)
        try:
            yield model
        finally:
            model.finalize()


@pytest.fixture(scope="module")
def embedder(folder: Any) -> SimEmbedder:
    fields = json.loads(SETTINGS.to_json())
    return SimEmbedder({"engine_dir": str(folder), "embedding": fields})


def send(model: Any, **tensors: Any) -> Any:
    request = Request(tensors)
    model.execute([request])
    (response,) = request.sender.responses()
    return response


def ids_of(text: str) -> list[int]:
    return [tokenizer.BOS, *map(ord, text)]


def texts(*words: str) -> Any:
    return np.array([[word.encode()] for word in words], dtype=object)


def test_response_has_a_row_per_text(model: Any, embedder: SimEmbedder) -> None:
    response = send(model, text_input=texts("ab", "abc", "é"))
    expected = embedder.embed([ids_of("ab"), ids_of("abc"), ids_of("é")])
    assert response["embedding"] == expected.tolist()
    assert response["num_input_tokens"] == [[3], [4], [2]]


def test_token_ids_are_sent_unchanged(model: Any, embedder: SimEmbedder) -> None:
    ids = [[5, 6, 7], [8, 9, 10]]
    assert send(model, input_ids=ids)["embedding"] == embedder.embed(ids).tolist()


def test_dimensions_shorten_and_normalize(model: Any, embedder: SimEmbedder) -> None:
    response = send(model, text_input=texts("ab"), dimensions=[[3]])
    whole = embedder.embed([ids_of("ab")])[0]
    np.testing.assert_allclose(
        response["embedding"][0], whole[:3] / np.linalg.norm(whole[:3]), rtol=1e-5
    )


def test_prompt_is_prepended(model: Any) -> None:
    prompted = send(model, text_input=texts("ab"), prompt_name=texts("query"))
    assert prompted == send(model, text_input=texts("Q:ab"))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "must contain exactly one of the inputs text_input and input_ids"),
        ({"text_input": texts("a"), "input_ids": [[1]]}, "send one of the two inputs"),
        ({"text_input": np.zeros((0, 1), dtype=object)}, "text_input has no rows; send at least"),
        ({"text_input": np.zeros((1, 0), dtype=object)}, "text_input has no rows; send at least"),
        ({"input_ids": np.zeros((0, 1), dtype=np.int32)}, "input_ids has no rows; send at least"),
        ({"text_input": texts("a" * 12)}, "the input has 13 tokens, but .* at most 12 tokens"),
        ({"text_input": np.array([[b"\xff"]], dtype=object)}, "not valid UTF-8"),
        ({"input_ids": [[256]]}, "input_ids contains 256"),
        ({"input_ids": [[1]], "prompt_name": texts("query")}, "prompt_name requires text_input"),
        ({"text_input": texts("a"), "dimensions": [[9]]}, "dimensions is 9"),
        ({"text_input": texts("a", "b"), "dimensions": [[2], [3]]}, "differs between rows"),
        (
            {"text_input": texts("a"), "prompt_name": texts("x")},
            "has no prompt with this name",
        ),
        (
            {"text_input": texts("a", "b"), "prompt_name": texts("query", "")},
            "prompt_name differs between rows",
        ),
    ],
)
def test_invalid_requests_are_rejected(model: Any, tensors: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(send(model, **tensors))


def test_requests_of_one_call_are_independent(model: Any, embedder: SimEmbedder) -> None:
    requests = [Request({"text_input": texts(word)}) for word in ("a", "b" * 20, "c")]
    model.execute(requests)
    first, second, third = (each.sender.responses()[0] for each in requests)
    assert first["embedding"] == embedder.embed([ids_of("a")]).tolist()
    assert "shorten the input" in second
    assert third["embedding"] == embedder.embed([ids_of("c")]).tolist()
