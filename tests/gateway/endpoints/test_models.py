from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel

VERSION = {"anthropic-version": "2023-06-01"}
NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def client() -> Iterator[TestClient]:
    config = GatewayConfig((ServedModel("a", "a", Endpoint()),))
    model = make_model(FakeBackend())
    models = [dataclasses.replace(model, name=name) for name in NAMES]
    with TestClient(build_app(config, LoadedRegistry(config, *models))) as client:
        yield client


def page(client: TestClient, query: str = "") -> tuple[list[str], bool, Any, Any]:
    body = client.get(f"/v1/models{query}", headers=VERSION).json()
    return (
        [each["id"] for each in body["data"]],
        body["has_more"],
        body["first_id"],
        body["last_id"],
    )


def test_format_follows_the_header(client: TestClient) -> None:
    assert client.get("/v1/models").json()["object"] == "list"
    assert client.get("/v1/models/").json() == client.get("/v1/models").json()
    assert client.get("/v1/models/a").json()["object"] == "model"
    described = client.get("/v1/models/a", headers=VERSION).json()
    assert client.get("/v1/models", headers=VERSION).json()["data"][0] == described
    assert (described["type"], described["display_name"]) == ("model", "a")
    assert (described["created_at"], described["max_tokens"]) == ("1970-01-01T00:00:01Z", 200)
    error = client.get("/v1/models/x", headers=VERSION).json()
    assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
    assert client.get("/v1/models/x").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", (NAMES, False, "a", "e")),
        ("?limit=2", (["a", "b"], True, "a", "b")),
        ("?limit=2&after_id=b", (["c", "d"], True, "c", "d")),
        ("?limit=2&after_id=c", (["d", "e"], False, "d", "e")),
        ("?after_id=e", ([], False, None, None)),
        ("?limit=2&before_id=e", (["c", "d"], True, "c", "d")),
        ("?limit=2&before_id=c", (["a", "b"], False, "a", "b")),
        ("?before_id=a", ([], False, None, None)),
        ("?lifecycle[]=retired", ([], False, None, None)),
        ("?lifecycle[]=retired&lifecycle[]=active&limit=1", (["a"], True, "a", "a")),
    ],
)
def test_pages(client: TestClient, query: str, expected: Any) -> None:
    assert page(client, query) == expected


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("after_id=x", "after_id"),
        ("before_id=x", "before_id"),
        ("after_id=a&before_id=b", "after_id"),
    ],
)
def test_invalid_queries(client: TestClient, query: str, param: str) -> None:
    response = client.get(f"/v1/models?{query}", headers=VERSION)
    assert response.status_code == 400
    assert response.json()["error"]["message"].lstrip("`").startswith(param)
    assert client.get(f"/v1/models?{query}").status_code == 200
