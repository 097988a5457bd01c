"""Provide text models, and the engine worker that they connect to, as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton_utils import Request
from tests.fakes.worker_thread import WorkerThread
from tests.runtime.models.text.stubbed_model import (
    Engine,
    connect_worker,
    loaded,
    make_request,
    stub_engine,
)
from trtllm_serve_cli.runtime.worker.worker_link import worker_socket_name


@pytest.fixture
def model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with loaded(tmp_path) as model:
        yield model


@pytest.fixture
def single_response_model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with loaded(tmp_path, decoupled=False) as model:
        yield model


@pytest.fixture
def generate(model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Send a request to the text model with a stub engine, and return the responses."""

    def generate(engine: Engine, **tensors: Any) -> list[Any]:
        stub_engine(monkeypatch, engine)
        request = make_request(**tensors)
        model.execute([request])
        return request.sender.responses()

    return generate


@pytest.fixture
def worker_thread() -> Iterator[WorkerThread]:
    """Run the engine worker of `tensorrt_llm`."""
    started = WorkerThread(
        worker_socket_name("tensorrt_llm"), client_settings={"excludes_input": True}
    )
    yield started
    started.close()


@pytest.fixture
def send_to_worker(
    worker_thread: WorkerThread, model: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Request]:
    """Send a request that only preprocessing and the engine worker process."""
    return connect_worker(model, monkeypatch)
