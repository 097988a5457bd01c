"""`POST /v1/embeddings` with a fake engine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.gateway.fakes import FakeBackend, fail, make_client
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.endpoints import embeddings
from trtllm_serve_cli.gateway.endpoints.embeddings import cut_tokens
from trtllm_serve_cli.runtime.embedding import decode_vector, encode_vector
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engine import SequenceUpdate

SETTINGS = EmbeddingSettings(4, is_normalized=True, is_matryoshka=True, prompts={"query": "Q:"})
FIXED = EmbeddingSettings(4)


def vector_of(ids: Iterable[int]) -> Any:
    ids = tuple(ids)
    return np.array([len(ids), ids[0], ids[-1], 0.1], dtype=np.float32)


def embeds(request_id: int, fields: Mapping[str, Any]) -> list[SequenceUpdate]:
    assert fields["max_new_tokens"] == 0
    text = encode_vector(vector_of(fields["input_ids"]))
    return [SequenceUpdate(request_id, finish_reason="stop", embedding=text)]


def make_embedder(
    backend: FakeBackend | None = None, settings: EmbeddingSettings = SETTINGS
) -> TestClient:
    info = ModelInfo("demo", max_seq_len=10, engine_kind="sim", vocab_size=200, embedding=settings)
    return make_client(backend or FakeBackend(embeds), info=info, template=None)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with make_embedder() as client:
        yield client


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post("/v1/embeddings", json={"model": "demo", **body})
    assert response.status_code == 200, response.text
    return response.json()


def reject(client: TestClient, path: str = "/v1/embeddings", **body: Any) -> dict[str, Any]:
    response = client.post(path, json={"model": "demo", **body})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("body_input", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_input_has_four_forms(client: TestClient, body_input: Any, ids: list[list[int]]) -> None:
    body = ask(client, input=body_input, user="someone")
    assert body["object"] == "list"
    assert body["model"] == "demo"
    num_tokens = sum(map(len, ids))
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert body["data"] == [
        {"object": "embedding", "index": index, "embedding": vector_of(each).tolist()}
        for index, each in enumerate(ids)
    ]


@pytest.mark.parametrize(("num_values", "is_thread"), [(4, False), (10_000, True)])
def test_large_responses_are_encoded_in_a_thread(
    num_values: int, is_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = np.arange(num_values, dtype=np.float32)
    names = []

    def decode(text: str) -> Any:
        names.append(threading.current_thread().name)
        return decode_vector(text)

    def reply(request_id: int, fields: Mapping[str, Any]) -> list[SequenceUpdate]:
        text = encode_vector(vector)
        return [SequenceUpdate(request_id, finish_reason="stop", embedding=text)]

    monkeypatch.setattr(embeddings, "decode_vector", decode)
    with make_embedder(FakeBackend(reply), EmbeddingSettings(num_values)) as client:
        data = ask(client, input=["ab", "c"])["data"]
    assert [each["embedding"] for each in data] == [vector.tolist()] * 2
    assert [name.startswith("long-request") for name in names] == [is_thread] * 2


def test_base64_contains_the_same_values(client: TestClient) -> None:
    text = ask(client, input="ab", encoding_format="base64")["data"][0]["embedding"]
    assert decode_vector(text).tolist() == vector_of([97, 98]).tolist()


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_dimensions_shorten_and_normalize(client: TestClient, encoding: str) -> None:
    body = ask(client, input="ab", dimensions=2, encoding_format=encoding)
    found = body["data"][0]["embedding"]
    values = decode_vector(found) if isinstance(found, str) else found
    whole = vector_of([97, 98])[:2]
    np.testing.assert_allclose(values, whole / np.linalg.norm(whole), rtol=1e-6)


def test_client_of_openai_decodes_the_response(client: TestClient) -> None:
    import openai  # not at module level, because it takes 1 s in each process

    api: Any = openai.OpenAI(base_url="http://testserver/v1", api_key="x", http_client=client)
    answer = api.embeddings.create(model="demo", input=["ab", "c"])
    assert [each.embedding for each in answer.data] == [
        vector_of([97, 98]).tolist(),
        vector_of([99]).tolist(),
    ]
    assert answer.usage.total_tokens == 3


def test_prompt_is_prepended_only_on_request() -> None:
    backend = FakeBackend(embeds)
    with make_embedder(backend) as client:
        ask(client, input="a")
        ask(client, input="a", prompt_name="query")
    assert [each["input_ids"] for each in backend.submitted] == [(97,), (81, 58, 97)]


def test_inputs_can_be_truncated() -> None:
    backend = FakeBackend(embeds)
    with make_embedder(backend) as client:
        body = ask(client, input=["a" * 30, "b"], truncate_prompt_tokens=-1)
        ask(client, input=[[7] * 30], truncate_prompt_tokens=3)
    assert [len(each["input_ids"]) for each in backend.submitted] == [10, 1, 3]
    assert body["usage"]["prompt_tokens"] == 11


def test_long_lists_are_encoded_in_a_thread(client: TestClient) -> None:
    body = ask(client, input=["abcdefghi"] * 600)
    assert len(body["data"]) == 600
    assert body["data"][599] == {
        "object": "embedding",
        "index": 599,
        "embedding": vector_of([97] * 8 + [105]).tolist(),
    }


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ["a", ""]}, "input", None),
        ({"input": [[1], []]}, "input", None),
        ({"input": ["a", 1]}, "input", None),
        ({"input": ["a", [1]]}, "input", None),
        ({"input": [1, [1]]}, "input", None),
        ({"input": [-1]}, "input[0]", None),
        ({"input": [200]}, "input", None),
        ({"input": ["a"] * 2049}, "input", None),
        ({"input": {"text": "a"}}, "input", None),
        ({}, "input", None),
        ({"input": "a" * 11}, "input", "context_length_exceeded"),
        ({"input": [[1] * 11]}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 5}, "dimensions", None),
        ({"input": "a", "dimensions": 0}, "dimensions", None),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", None),
        ({"input": "a", "prompt_name": "x"}, "prompt_name", None),
        ({"input": [1], "prompt_name": "query"}, "prompt_name", None),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", None),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", None),
    ],
)
def test_invalid_requests(
    client: TestClient, body: dict[str, Any], param: str | None, code: str | None
) -> None:
    error = reject(client, **body)
    assert (error["param"], error["code"]) == (param, code)


def test_dimensions_require_a_model_that_declares_them() -> None:
    with make_embedder(settings=FIXED) as client:
        assert reject(client, input="a", dimensions=2)["param"] == "dimensions"
        ask(client, input="a", dimensions=4)


@pytest.mark.parametrize(
    ("model", "status", "code"), [("demo", 400, "unsupported"), ("x", 404, "model_not_found")]
)
def test_models_that_generate_text_are_rejected(model: str, status: int, code: str) -> None:
    with make_client(FakeBackend()) as client:
        response = client.post("/v1/embeddings", json={"model": model, "input": "Hi"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, "model", code)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_other_endpoints_reject_embedding_models(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    error = reject(client, path, **body)
    assert (error["param"], error["code"]) == ("model", "unsupported")
    assert "computes embeddings" in error["message"]


def test_embedding_models_are_listed(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["task"]) == ("demo", 10, "embed")


@pytest.mark.parametrize(
    ("why", "rejected", "status"),
    [
        ("Exceeds maximum queue size. Maximum queue size of 3 has been reached", True, 429),
        ("the connection to the engine worker was lost; retry the request", False, 503),
        ("broken", False, 500),
    ],
)
def test_errors_of_the_engine(why: str, rejected: bool, status: int) -> None:
    backend = FakeBackend(fail(why, rejected=rejected))
    with make_embedder(backend) as client:
        response = client.post("/v1/embeddings", json={"model": "demo", "input": ["a", "b"]})
    assert (response.status_code, response.json()["error"]["message"]) == (status, why)


@given(
    st.lists(st.integers(3, 9), min_size=1),
    st.lists(st.integers(0, 2), max_size=2),
    st.lists(st.integers(0, 2), max_size=2),
    st.integers(1, 12),
)
def test_cut_text_keeps_its_special_tokens(
    plain: list[int], before: list[int], after: list[int], limit: int
) -> None:
    cut = cut_tokens([*before, *plain, *after], plain, limit)
    num_special = len(before) + len(after)
    if len(plain) + num_special <= limit:
        assert cut == [*before, *plain, *after]
    elif limit > num_special:
        assert cut == [*before, *plain[: limit - num_special], *after]
    assert len(cut) <= limit
