"""Test the LoRA adapters that the gateway serves for Triton servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.triton.lora_cache import LoraCache
from tests.fakes.triton.server import FakeTriton
from tests.gateway.fakes import FakeBackend, LetterTokenizer, LoadedRegistry, make_model
from tests.samples.lora_adapters import write_converted
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.access.keys import add_key
from trtllm_serve_cli.gateway.adapters import configure_adapter, find_prefetched, list_adapters
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedAdapter, ServedModel
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.model_registry import ModelRegistry

MODEL = ServedModel("demo", "ensemble", Endpoint())


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """Write adapters for which the fake engine generates the letters a, b and c."""
    for letter, name in zip("abc", ("5", "poet", "tenants/pirate"), strict=True):
        write_converted(tmp_path / "adapters" / name, first=ord(letter))
    return tmp_path / "adapters"


@contextlib.contextmanager
def serve(
    monkeypatch: pytest.MonkeyPatch, *servers: FakeTriton, **settings: Any
) -> Iterator[TestClient]:
    """Serve the gateway for servers elsewhere, as `tllm gateway` does."""
    monkeypatch.setattr(
        "trtllm_serve_cli.gateway.model_registry.load_tokenizer", lambda folder: LetterTokenizer()
    )
    with contextlib.ExitStack() as stack:
        models = tuple(
            ServedModel("demo", "ensemble", stack.enter_context(server).endpoint, "/tokenizer")
            for server in servers
        )
        client = stack.enter_context(TestClient(build_app(GatewayConfig(models, **settings))))
        wait_until(lambda: client.get("/health").status_code == 200)
        yield client


def generate(client: TestClient, model: str, **headers: str) -> Any:
    """Return the text of a response, or its error."""
    body = {"model": model, "prompt": "x", "max_tokens": 2, "temperature": 0}
    answer = client.post("/v1/completions", json=body, headers=headers).json()
    return answer["choices"][0]["text"] if "choices" in answer else answer["error"]


def names(client: TestClient, **headers: str) -> list[str]:
    return [each["id"] for each in client.get("/v1/models", headers=headers).json()["data"]]


def make_server(capacity: int = 1, **parameters: str) -> FakeTriton:
    known = {"vocab_size": "500", "engine_kind": "tensorrt", **parameters}
    return FakeTriton(answer=LoraCache(capacity), parameters=known)


def test_adapters_are_models_of_servers_elsewhere(
    monkeypatch: pytest.MonkeyPatch, adapters: Path
) -> None:
    configured = (ServedAdapter("poet", str(adapters / "poet"), "demo"),)
    servers = [make_server(lora_prefetch_dir=str(adapters)) for _ in range(2)]
    tenants = str(adapters / "tenants")
    with serve(monkeypatch, *servers, adapters=configured, runtime_lora_dir=tenants) as client:
        assert names(client) == ["demo", "poet", "5"]
        body = {"lora_name": "pirate", "lora_path": "pirate"}
        assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
        assert client.get("/v1/models/pirate").json()["parent"] == "demo"
        # The cache of each server has room for one adapter.
        for _ in range(2):
            texts = [generate(client, each) for each in ("demo", "5", "poet", "pirate")]
            assert texts == ["", "aa", "bb", "cc"]
        assert client.post("/v1/unload_lora_adapter", json=body).status_code == 200
        assert generate(client, "pirate")["code"] == "model_not_found"


def test_keys_may_be_limited_to_adapters(monkeypatch: pytest.MonkeyPatch, adapters: Path) -> None:
    file = adapters / "keys.json"
    configured = (ServedAdapter("poet", str(adapters / "poet"), "demo"),)
    poet, base = (
        {"x-api-key": add_key(file, name, now_s=1.0, models=(name,))} for name in ("poet", "demo")
    )
    settings = {"adapters": configured, "keys_file": str(file)}
    with serve(monkeypatch, make_server(), **settings) as client:
        assert (names(client, **poet), names(client, **base)) == (["poet"], ["demo"])
        assert (generate(client, "poet", **poet), generate(client, "demo", **base)) == ("bb", "")
        for model, key in (("demo", poet), ("poet", base)):
            assert generate(client, model, **key)["code"] == "model_not_found"


def test_bad_adapter_is_not_loaded(monkeypatch: pytest.MonkeyPatch, adapters: Path) -> None:
    write_converted(adapters / "bad", num_rows=3)
    with serve(monkeypatch, make_server(), runtime_lora_dir=str(adapters)) as client:
        body = {"lora_name": "bad", "lora_path": "bad"}
        response = client.post("/v1/load_lora_adapter", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "lora_path")
        assert "do not match" in error["message"]
        assert names(client) == ["demo"]


@pytest.mark.parametrize(
    ("parameters", "inputs", "why"),
    [
        ({"engine_kind": "sim"}, (), "a simulated engine has no model"),
        ({}, ("input_ids", "input_lengths", "request_output_len"), "no inputs for LoRA adapters"),
    ],
    ids=["kind", "inputs"],
)
def test_adapters_that_the_engine_cannot_use_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
    adapters: Path,
    parameters: dict[str, str],
    inputs: tuple[str, ...],
    why: str,
) -> None:
    server = make_server(lora_prefetch_dir=str(adapters), **parameters)
    server.inputs_of = {"tensorrt_llm": inputs} if inputs else {}
    configured = (ServedAdapter("poet", str(adapters / "poet"), "demo"),)
    with serve(monkeypatch, server, adapters=configured) as client:
        assert names(client) == ["demo"]
        assert why in generate(client, "poet")["message"]


def test_adapter_is_not_ready_before_its_base_model() -> None:
    config = GatewayConfig((MODEL,), adapters=(ServedAdapter("poet", "/poet", "demo"),))
    registry = ModelRegistry(config)
    with pytest.raises(ApiError, match="'demo' is not ready") as raised:
        registry.find("poet")
    assert raised.value.status == 503
    assert registry.has_name("poet")
    assert LoadedRegistry(config, make_model(FakeBackend())).base_names == ("demo",)


@pytest.mark.parametrize(
    ("engine_kind", "expected"),
    [
        # Engines with a worker select adapters by name.
        ("openvino", [{"lora_name": "5"}, {"lora_name": "poet"}, {"lora_name": "tenants"}]),
        # NVIDIA's backend requires a task id.
        ("tensorrt", [{"lora_task_id": 5, "lora_file": "FOLDER/5"}]),
        ("", [{"lora_task_id": 5, "lora_file": "FOLDER/5"}]),
        ("sim", []),
    ],
)
def test_prefetched_adapters(
    adapters: Path, engine_kind: str, expected: list[dict[str, Any]]
) -> None:
    info = ModelInfo("demo", engine_kind=engine_kind, lora_prefetch_dir=str(adapters))
    found = find_prefetched(make_model(FakeBackend(), info=info))
    fields = [each.adapter_fields for each in found]
    for each in expected:
        if "lora_file" in each:
            each["lora_file"] = str(adapters / "5")
    assert fields == expected
    assert {each.root for each in found} <= {"demo"}


@pytest.mark.parametrize(
    ("engine_kind", "warnings"),
    [
        (
            "tensorrt",
            [
                "The gateway does not serve these adapters of the model demo, because the C++ "
                "backend requires task ids as the names of their folders in FOLDER: poet, tenants."
            ],
        ),
        ("openvino", []),
        ("sim", []),
    ],
)
def test_skipped_prefetched_adapters_are_logged(
    adapters: Path, caplog: pytest.LogCaptureFixture, engine_kind: str, warnings: list[str]
) -> None:
    info = ModelInfo("demo", engine_kind=engine_kind, lora_prefetch_dir=str(adapters))
    find_prefetched(make_model(FakeBackend(), info=info))
    assert caplog.messages == [each.replace("FOLDER", str(adapters)) for each in warnings]


def test_configured_adapter_does_not_replace_a_prefetched_one() -> None:
    """The engine uses a prefetched adapter with the same name, and ignores the folder."""
    model = make_model(FakeBackend())
    first, again, other = (
        configure_adapter(model, ServedAdapter("poet", folder, "demo"))
        for folder in ("/a", "/a", "/b")
    )
    assert first.name == "poet"
    assert first.lora_name == again.lora_name != other.lora_name
    assert first.lora_name != "poet"


def test_adapters_are_folders(tmp_path: Path) -> None:
    for name in ("poet", "7", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    assert list_adapters(tmp_path) == ["7", "poet"]
    assert list_adapters(tmp_path / "missing") == []
