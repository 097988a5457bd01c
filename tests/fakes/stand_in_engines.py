"""Load engines with stand-ins of their packages, and send requests to them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.samples.lora_adapters import SITES, make_adapter
from trtllm_serve_cli.runtime.engine import GenerationRequest, SequenceUpdate
from trtllm_serve_cli.runtime.lora.adapter import encode_adapter
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

STAND_IN = Path(__file__).with_name("stand_in")


class EngineLoader:
    """Loads engines of one kind with the stand-in of its package."""

    def __init__(self, module: str, engine: str, client_module: str) -> None:
        self._module, self._engine, self._client_module = module, engine, client_module
        self.engines: list[Any] = []

    def __call__(self, options: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Load an engine with these arguments of its package and these worker `options`."""
        module = importlib.import_module(f"trtllm_serve_cli.runtime.{self._module}")
        config = {"llm": {"model": "/m", **arguments}, "max_seq_len": 1024, "vocab_size": 1000}
        self.engines.append(getattr(module, self._engine)({**config, **(options or {})}))
        return self.engines[-1]

    @property
    def clients(self) -> list[Any]:
        """The clients that engines created in the package, in order; each records its requests."""
        clients: list[Any] = importlib.import_module(self._client_module).CLIENTS
        return clients

    @property
    def client(self) -> Any:
        """The client of the last engine."""
        return self.clients[-1]


@contextmanager
def engines_on(
    module: str, engine: str, client_module: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineLoader]:
    """Load the class `engine` of the runtime module `module` with the stand-in of its package.

    The package records its calls in `client_module`. The engine sets the environment variable
    `variable` for it. All engines are closed at the end, and must have shut the clients down.
    """
    package = client_module.partition(".")[0]
    monkeypatch.syspath_prepend(str(STAND_IN))
    # Set first, so that monkeypatch also deletes it at the end.
    monkeypatch.setenv(variable, "")
    monkeypatch.delenv(variable)
    _forget(package, module)
    load = EngineLoader(module, engine, client_module)
    yield load
    for each in load.engines:
        each.close()
    assert all(client.is_shut_down for client in load.clients)
    _forget(package, module)


@cache
def installed_classes(version: str) -> SimpleNamespace:
    """Return TorchLlmArgs and update_llm_args_with_extra_dict of the stand-in for TensorRT-LLM.

    The classes are those of `version`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STAND_IN))
        patch.setenv("STAND_IN_TRTLLM", version)
        _forget("tensorrt_llm", "engines.pytorch.engine")
        utils = importlib.import_module("tensorrt_llm.llmapi.llm_utils")
        args = importlib.import_module("tensorrt_llm.llmapi.llm_args")
        _forget("tensorrt_llm", "engines.pytorch.engine")
    return SimpleNamespace(
        TorchLlmArgs=args.TorchLlmArgs, update=utils.update_llm_args_with_extra_dict
    )


def _forget(package: str, module: str) -> None:
    """Remove the package and the modules next to `module`, which may import the package."""
    folder = f"trtllm_serve_cli.runtime.{module.rpartition('.')[0]}."
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith(folder):
            del sys.modules[name]


def request(number: int = 1, first: int = 5, **fields: Any) -> GenerationRequest:
    return GenerationRequest(number, (first, 10), **{"max_new_tokens": 3, **fields})


def run(engine: Any, *requests: GenerationRequest) -> list[SequenceUpdate]:
    """Run requests to their end, and return all updates."""
    for each in requests:
        engine.submit(each)
    updates: list[SequenceUpdate] = []
    while engine.has_work():
        updates += engine.step()
    return updates


def write_checkpoint(folder: Path) -> str:
    """Write a checkpoint with the layers that adapters are checked against."""
    tensors = {f"{module}.weight": np.zeros(size) for module, size in SITES.items()}
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors))
    return str(folder)


def request_with_adapter(number: int, folder: Path, **fields: Any) -> GenerationRequest:
    """Return a request with a LoRA adapter whose task id is `number`."""
    file = folder / f"sent-{number}"
    with file.open("wb") as opened:
        for each in encode_adapter(make_adapter(SITES, ["q_proj"])):
            np.save(opened, each)
    return request(number, lora_task_id=number, lora_file=str(file), **fields)
