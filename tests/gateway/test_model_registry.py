from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.gateway.fakes import FakeBackend, LetterTokenizer, LoadedRegistry, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.errors import NoServer
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.gateway.model_registry import (
    ModelRegistry,
    find_creation_time,
    find_defaults,
)
from trtllm_serve_cli.gateway.served_model import NO_DEFAULTS

SERVED = ServedModel("demo", "demo", Endpoint())


def test_unknown_and_loading_models() -> None:
    registry = ModelRegistry(GatewayConfig((SERVED,)))
    with pytest.raises(ApiError, match="'demo' is not ready \\(its server is starting") as raised:
        registry.find("demo")
    assert raised.value.status == 503
    with pytest.raises(ApiError, match=r"'x' does not exist\. Available models: demo\.") as raised:
        registry.find("x")
    assert raised.value.status == 404
    assert registry.find_problems() == ["The model 'demo' is not ready (its server is starting)"]


def test_adapter_is_a_model_with_the_same_engine() -> None:
    backend = FakeBackend()
    model = make_model(backend)
    adapter = model.with_adapter("poet", lora_name="poet")
    registry = LoadedRegistry(GatewayConfig((SERVED,)), model, adapter)
    found = registry.find("poet")
    assert (found.lora_name, found.root, found.backend) == ("poet", "demo", backend)
    assert registry.find_problems() == []


def test_defaults_are_read_unless_the_operator_disables_them(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    info = ModelInfo("demo", tokenizer_dir=str(tmp_path))
    assert find_defaults(GatewayConfig((SERVED,)), info).top_p == 0.5
    assert find_defaults(GatewayConfig((SERVED,), generation_config="off"), info) == NO_DEFAULTS
    assert find_defaults(GatewayConfig((SERVED,)), ModelInfo("demo")) == NO_DEFAULTS


def test_creation_time_does_not_depend_on_the_process(tmp_path: Path) -> None:
    os.utime(tmp_path, (5, 7))
    info = ModelInfo("demo", tokenizer_dir=str(tmp_path))
    assert find_creation_time(dataclasses.replace(SERVED, created_at=3), info) == 3
    assert find_creation_time(SERVED, info) == 7
    assert find_creation_time(SERVED, ModelInfo("demo", tokenizer_dir="/missing")) == 0


def test_tokenizers_are_loaded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent first imports of transformers fail with an ImportError."""
    is_loading = threading.Lock()

    def load(folder: Path) -> LetterTokenizer:
        if not is_loading.acquire(blocking=False):
            raise ImportError(name="transformers")
        time.sleep(0.1)
        is_loading.release()
        return LetterTokenizer()

    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry.load_tokenizer", load)

    async def run(endpoint: Endpoint) -> list[str]:
        served = tuple(ServedModel(name, name, endpoint, "/tokenizer") for name in ("a", "b"))
        registry = ModelRegistry(GatewayConfig(served))
        registry.start()
        while registry.find_problems():
            await asyncio.sleep(0.01)
        await registry.close()
        return sorted(each.name for each in registry.list_loaded())

    with FakeTriton() as triton:
        assert asyncio.run(run(triton.endpoint)) == ["a", "b"]


def test_configured_tokenizer_replaces_the_folder_on_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []

    def load(folder: Path) -> LetterTokenizer:
        folders.append(folder)
        return LetterTokenizer()

    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry.load_tokenizer", load)

    async def run(endpoint: Endpoint) -> None:
        served = (ServedModel("demo", "ensemble", endpoint),)
        registry = ModelRegistry(GatewayConfig(served, tokenizer_dir="/here"))
        registry.start()
        while registry.find_problems():
            await asyncio.sleep(0.01)
        await registry.close()

    with FakeTriton(parameters={"vocab_size": "500", "tokenizer_dir": "/elsewhere"}) as triton:
        asyncio.run(run(triton.endpoint))
    assert folders == [Path("/here")]


def test_vocabulary_size_is_that_of_the_core_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of text models does not contain it."""
    infos = {
        "ensemble": ModelInfo("ensemble", tokenizer_dir="/tokenizer"),
        "tensorrt_llm": ModelInfo("tensorrt_llm", vocab_size=500, inputs=frozenset({"input_ids"})),
        "preprocessing": ModelInfo("preprocessing"),
    }
    registry_module = "trtllm_serve_cli.gateway.model_registry"
    monkeypatch.setattr(f"{registry_module}.load_tokenizer", lambda folder: LetterTokenizer())
    monkeypatch.setattr(
        f"{registry_module}.fetch_model_config", lambda endpoint, name, *_: infos[name]
    )

    async def run() -> int | None:
        registry = ModelRegistry(GatewayConfig((ServedModel("demo", "ensemble", Endpoint()),)))
        registry.start()
        while not registry.list_loaded():
            await asyncio.sleep(0.01)
        (model,) = registry.list_loaded()
        await registry.close()
        return model.info.vocab_size

    assert asyncio.run(asyncio.wait_for(run(), 10)) == 500


async def _refuse(endpoint: Endpoint, tokenizer_dir: str | None = None) -> tuple[str, str]:
    """Return the name of the model that the gateway refuses, and the reason."""
    refusal: asyncio.Future[tuple[str, str]] = asyncio.Future()
    served = (ServedModel("demo", "ensemble", endpoint),)
    registry = ModelRegistry(
        GatewayConfig(served, tokenizer_dir=tokenizer_dir),
        on_refused=lambda name, why: refusal.set_result((name, why)),
    )
    registry.start()
    model, why = await refusal
    with pytest.raises(ApiError, match="cannot serve the model 'demo', because") as raised:
        registry.find("demo")
    assert why in raised.value.message
    await registry.close()
    return model, why


def test_model_without_a_tokenizer_is_refused_with_the_reason() -> None:
    with FakeTriton() as triton:
        refusal = asyncio.run(_refuse(triton.endpoint))
    assert refusal == ("demo", "the configuration of the model ensemble does not set tokenizer_dir")


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (ImportError(name="sentencepiece"), "the sentencepiece package"),
        (ImportError("install jieba"), "another package: install jieba"),
    ],
)
def test_tokenizer_that_needs_a_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, package: str
) -> None:
    def load(folder: Path) -> LetterTokenizer:
        raise error

    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry.load_tokenizer", load)
    with FakeTriton() as triton:
        _, why = asyncio.run(_refuse(triton.endpoint, "/here"))
    assert why == f"its tokenizer requires {package}"


def test_unknown_tool_parser_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "trtllm_serve_cli.gateway.model_registry.load_tokenizer", lambda folder: LetterTokenizer()
    )

    async def run(endpoint: Endpoint) -> str:
        refusal: asyncio.Future[str] = asyncio.Future()
        served = (ServedModel("demo", "ensemble", endpoint, "/tokenizer"),)
        registry = ModelRegistry(
            GatewayConfig(served, tool_parser="hermse"),
            on_refused=lambda name, why: refusal.set_result(why),
        )
        registry.start()
        why = await asyncio.wait_for(refusal, 10)
        assert registry.find_problems() == []
        await registry.close()
        return why

    with FakeTriton() as triton:
        why = asyncio.run(run(triton.endpoint))
    assert why.startswith("the tool parser 'hermse' does not exist; choose one of hermes, ")


def test_problem_of_a_loading_model_has_no_period_in_parentheses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise NoServer("Nothing responds at localhost:1.")

    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry.fetch_model_config", fail)

    async def run() -> list[str]:
        registry = ModelRegistry(GatewayConfig((SERVED,)))
        registry.start()
        while "its server is starting" in (problems := registry.find_problems())[0]:
            await asyncio.sleep(0.01)
        await registry.close()
        return problems

    problem = "The model 'demo' is not ready (Nothing responds at localhost:1)"
    assert asyncio.run(asyncio.wait_for(run(), 10)) == [problem]


@pytest.mark.parametrize(
    ("server_directory", "reported"),
    [(None, ["demo: Nothing responds at localhost:1"]), ("/servers/8000", [])],
    ids=["unsupervised", "supervised"],
)
def test_problem_of_an_unsupervised_server_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, server_directory: str | None, reported: list[str]
) -> None:
    attempts: list[object] = []

    def fail(*arguments: object) -> None:
        attempts.append(arguments)
        raise NoServer("Nothing responds at localhost:1.")

    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry.fetch_model_config", fail)
    monkeypatch.setattr("trtllm_serve_cli.gateway.model_registry._RETRY_S", 0)

    async def run() -> list[str]:
        waiting: list[str] = []
        registry = ModelRegistry(
            GatewayConfig((SERVED,), server_directory=server_directory),
            on_waiting=lambda name, why: waiting.append(f"{name}: {why}"),
        )
        registry.start()
        while len(attempts) < 4:
            await asyncio.sleep(0)
        await registry.close()
        return waiting

    assert asyncio.run(asyncio.wait_for(run(), 10)) == reported


def test_configuration_of_a_local_server_is_fetched_over_http(tmp_path: Path) -> None:
    async def run(endpoint: Endpoint) -> str:
        refusal: asyncio.Future[str] = asyncio.Future()
        config = GatewayConfig(
            (ServedModel("demo", "ensemble", endpoint),), server_directory=str(tmp_path)
        )
        registry = ModelRegistry(config, on_refused=lambda name, why: refusal.set_result(why))
        registry.start()
        why = await refusal
        await registry.close()
        return why

    with FakeTriton() as triton:
        endpoint = Endpoint(grpc="127.0.0.1:1", http=triton.endpoint.http)
        assert "does not set tokenizer_dir" in asyncio.run(run(endpoint))


@pytest.mark.parametrize(
    ("changes", "has_triton", "waits"),
    [
        ({"engine_kind": "sim"}, True, True),
        ({"engine_kind": "sim", "has_queue_policy": True}, True, False),
        ({"engine_kind": "sim"}, False, False),
        ({"engine_kind": "tensorrt"}, True, False),
        ({}, True, False),
    ],
    ids=["restarting", "queue policy", "container", "no worker", "not rendered by tllm"],
)
def test_gateway_waits_for_a_worker_that_restarts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], has_triton: bool, waits: bool
) -> None:
    inputs = frozenset({"input_ids"})
    info = ModelInfo("demo", tokenizer_dir="/tokenizer", inputs=inputs, **changes)
    worker = FakeBackend()
    attempts: list[str] = []

    async def connect(*_: object) -> FakeBackend | None:
        attempts.append("")
        return worker if len(attempts) > 4 else None

    module = "trtllm_serve_cli.gateway.model_registry"
    monkeypatch.setattr(f"{module}.load_tokenizer", lambda folder: LetterTokenizer())
    monkeypatch.setattr(f"{module}.fetch_model_config", lambda *_: info)
    monkeypatch.setattr(f"{module}.connect_workers", connect)
    monkeypatch.setattr(f"{module}.has_triton", lambda *_: has_triton)
    monkeypatch.setattr(f"{module}._RETRY_S", 0)

    async def run() -> bool:
        registry = ModelRegistry(GatewayConfig((SERVED,), server_directory="/servers/8000"))
        registry.start()
        while not registry.list_loaded():
            await asyncio.sleep(0)
        (model,) = registry.list_loaded()
        await registry.close()
        return model.backend is worker

    assert asyncio.run(asyncio.wait_for(run(), 10)) == waits
