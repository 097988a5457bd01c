"""What tests of engines share that run on a stand-in of the engine's package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples.lora_adapters import SITES, make_adapter
from trtllm_serve_cli.runtime.engine import GenerationRequest, SequenceUpdate
from trtllm_serve_cli.runtime.lora.adapter import encode_adapter
from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

STAND_IN = Path(__file__).with_name("stand_in")
Load = Callable[..., Any]


@contextmanager
def engines_on(
    package: str,
    module: str,
    engine: str,
    client: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Load]:
    """Load the class `engine` of the runtime module `module` on the stand-in of `package`.

    `client` is its attribute that has to be shut down in the end, `variable` what it says to the
    package by the environment.
    """
    engines: list[Any] = []

    def load(options: dict[str, Any] | None = None, **arguments: Any) -> Any:
        make = getattr(importlib.import_module(f"trtllm_serve_cli.runtime.{module}"), engine)
        config = {"llm": {"model": "/m", **arguments}, "max_seq_len": 1024, "vocab_size": 1000}
        engines.append(make({**config, **(options or {})}))
        return engines[-1]

    monkeypatch.syspath_prepend(str(STAND_IN))
    # Set before it is taken away, so that it is taken away again in the end.
    monkeypatch.setenv(variable, "")
    monkeypatch.delenv(variable)
    _forget(package, module)
    yield load
    for each in engines:
        each.close()
        assert getattr(each, client).is_shut_down
    _forget(package, module)


def _forget(package: str, module: str) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.endswith(f".runtime.{module}"):
            del sys.modules[name]


def request(number: int = 1, first: int = 5, **fields: Any) -> GenerationRequest:
    return GenerationRequest(number, (first, 10), **{"max_new_tokens": 3, **fields})


def run(engine: Any, *requests: GenerationRequest) -> list[SequenceUpdate]:
    """All that comes of the requests."""
    for each in requests:
        engine.submit(each)
    updates: list[SequenceUpdate] = []
    while engine.has_work():
        updates += engine.step()
    return updates


def write_checkpoint(folder: Path) -> str:
    """A checkpoint whose layers an adapter can be checked against."""
    tensors = {f"{module}.weight": np.zeros(size) for module, size in SITES.items()}
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors))
    return str(folder)


def request_with_adapter(number: int, folder: Path, **fields: Any) -> GenerationRequest:
    """One that brings an adapter along, whose task id is `number`."""
    file = folder / f"sent-{number}"
    with file.open("wb") as opened:
        for each in encode_adapter(make_adapter(SITES, ["q_proj"])):
            np.save(opened, each)
    return request(number, lora_task_id=number, lora_file=str(file), **fields)
