from __future__ import annotations

import pytest

from tests.gateway.fakes import FakeBackend, make_client


@pytest.mark.parametrize(
    ("model", "status", "code"), [("demo", 400, "unsupported"), ("x", 404, "model_not_found")]
)
def test_embeddings_are_rejected(model: str, status: int, code: str) -> None:
    with make_client(FakeBackend()) as client:
        response = client.post("/v1/embeddings", json={"model": model, "input": "Hi"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, "model", code)
