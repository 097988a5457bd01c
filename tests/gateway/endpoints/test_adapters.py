from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from starlette.testclient import TestClient

from tests.gateway.fakes import (
    FakeBackend,
    LoadedRegistry,
    fail,
    generates,
    make_client,
    make_model,
)
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.access.keys import add_key
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
POET = {"lora_name": "org/poet", "lora_path": "poet"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the operator's folder, which contains adapters and other things."""
    root = tmp_path / "adapters"
    for name in ("poet", "pirate"):
        (root / name).mkdir(parents=True)
    (root / "file").touch()
    (tmp_path / "secret").mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root / "loop")
    return root


@contextlib.contextmanager
def serve(backend: FakeBackend, root: Path | None, **changes: Any) -> Iterator[TestClient]:
    config = {"runtime_lora_dir": None if root is None else str(root)}
    with make_client(backend, config, **changes) as client:
        yield client


def error_of(response: Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


def names(client: TestClient) -> list[str]:
    return [each["id"] for each in client.get("/v1/models").json()["data"]]


def test_a_loaded_adapter_is_a_model_until_it_is_unloaded(root: Path) -> None:
    backend = FakeBackend()
    with serve(backend, root) as client:
        response = client.post(LOAD, json=POET)
        assert response.text == "Success: LoRA adapter 'org/poet' added successfully."
        described = client.get("/v1/models/org/poet").json()
        assert (described["id"], described["parent"]) == ("org/poet", "demo")
        answer = client.post("/v1/completions", json={"model": "org/poet", "prompt": "x"}).json()
        assert answer["model"] == "org/poet"
        tried, used = backend.submitted
        assert tried["max_new_tokens"] == 1
        for fields in (tried, used):
            assert fields["lora_name"].startswith("org/poet-")
            assert fields["lora_file"] == str(root / "poet")
        assert client.post(UNLOAD, json={"lora_name": "org/poet"}).status_code == 200
        assert names(client) == ["demo"]
        missing = client.post("/v1/completions", json={"model": "org/poet", "prompt": "x"})
        assert missing.status_code == 404
        assert error_of(client.post(UNLOAD, json={"lora_name": "org/poet"}))[:2] == (
            404,
            "lora_name",
        )


def test_an_adapter_that_is_loaded_again_has_another_key(root: Path) -> None:
    backend = FakeBackend()
    with serve(backend, root) as client:
        client.post(LOAD, json=POET)
        again = client.post(LOAD, json={**POET, "lora_path": "pirate"})
        assert error_of(again)[:2] == (400, "lora_name")
        body = {**POET, "lora_path": str(root / "pirate"), "load_inplace": True}
        assert client.post(LOAD, json=body).status_code == 200
    first, second = backend.submitted
    assert first["lora_name"] != second["lora_name"]
    assert second["lora_file"] == str(root / "pirate")


def test_engine_gets_a_path_below_the_operators_folder_if_it_is_a_link(root: Path) -> None:
    """A container mounts the path that the operator has set, not the target of the link."""
    backend, tenants = FakeBackend(), root.parent / "tenants"
    tenants.symlink_to(root)
    with serve(backend, tenants) as client:
        assert client.post(LOAD, json=POET).status_code == 200
    assert backend.submitted[0]["lora_file"] == str(tenants / "poet")


@pytest.mark.parametrize(
    "path", ["../secret", "link", "loop", "file", "missing", ".", "/", "poet/../..", "a\0b", "~"]
)
def test_only_folders_below_the_operators_folder_are_read(root: Path, path: str) -> None:
    backend = FakeBackend()
    with serve(backend, root) as client:
        refused = [
            error_of(client.post(LOAD, json={**POET, "lora_path": each}))
            for each in (path, "../nosuch")
        ]
        assert names(client) == ["demo"]
    assert refused[0][:2] == (400, "lora_path")
    # A client cannot find out whether a path outside the folder exists.
    assert refused[0] == refused[1]
    assert backend.submitted == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"lora_name": "demo"}, "lora_name"),
        ({"lora_name": ""}, "lora_name"),
        ({"lora_name": "a\nb"}, "lora_name"),
        ({"lora_path": ""}, "lora_path"),
        ({"model": "nosuch"}, "model"),
    ],
)
def test_invalid_requests(root: Path, fields: dict[str, str], param: str) -> None:
    with serve(FakeBackend(), root) as client:
        status, named, _ = error_of(client.post(LOAD, json={**POET, **fields}))
    assert (status, named) == (404 if param == "model" else 400, param)


def test_adapters_must_be_enabled(root: Path) -> None:
    with serve(FakeBackend(), None) as client:
        for path in (LOAD, UNLOAD):
            status, _, message = error_of(client.post(path, json=POET))
            assert (status, "--runtime-lora-dir" in message) == (403, True)


@pytest.mark.parametrize(
    ("changes", "backend", "why"),
    [
        ({"engine_kind": "sim"}, FakeBackend(), "a simulated engine has no model"),
        ({}, FakeBackend(accepts_adapters=False), "no inputs for LoRA adapters"),
        ({}, FakeBackend(fail("the rank 128 is too high", rejected=True)), "the rank 128"),
    ],
    ids=["kind", "connection", "engine"],
)
def test_models_that_cannot_load_an_adapter(
    root: Path, changes: dict[str, Any], backend: FakeBackend, why: str
) -> None:
    with serve(backend, root, **changes) as client:
        status, _, message = error_of(client.post(LOAD, json=POET))
        assert names(client) == ["demo"]
    assert (status, why in message) == (400, True)


def test_keys_that_are_limited_to_models_cannot_load_adapters(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        "all": add_key(file, "all", now_s=1.0),
        "limited": add_key(file, "limited", now_s=1.0, models=("demo",)),
    }
    config = {"runtime_lora_dir": str(root), "keys_file": str(file)}
    with make_client(FakeBackend(), config) as client:
        statuses = {
            name: client.post(LOAD, json=POET, headers={"x-api-key": keys.get(name, "")})
            for name in ("none", "limited", "all")
        }
    found = {name: each.status_code for name, each in statuses.items()}
    assert found == {"none": 401, "limited": 403, "all": 200}


def test_several_models_require_the_name_of_the_base(root: Path) -> None:
    backends = [FakeBackend(), FakeBackend(generates("x"))]
    served = tuple(ServedModel(name, name, Endpoint()) for name in ("demo", "other"))
    config = GatewayConfig(served, runtime_lora_dir=str(root))
    models = [make_model(backends[0]), make_model(backends[1]).with_adapter("other")]
    with TestClient(build_app(config, LoadedRegistry(config, *models))) as client:
        status, param, message = error_of(client.post(LOAD, json=POET))
        assert (status, param, "demo, other" in message) == (400, "model", True)
        # An adapter is not a base.
        assert error_of(client.post(LOAD, json={**POET, "model": "other"}))[:2] == (400, "model")
        assert client.post(LOAD, json={**POET, "model": "demo"}).status_code == 200
    assert (len(backends[0].submitted), len(backends[1].submitted)) == (1, 0)
