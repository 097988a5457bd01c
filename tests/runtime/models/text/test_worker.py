"""Requests that the text model sends directly to the engine worker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.scripted_worker import HANG
from tests.fakes.triton_utils import Request
from tests.fakes.worker_thread import WorkerThread
from tests.runtime.models.text.stubbed_model import connect_worker, loaded, texts_of
from tests.waiting import wait_until


def test_receives_tokens_directly_from_the_worker(send_to_worker: Callable[..., Request]) -> None:
    responses = send_to_worker(stream=[[True]]).sender.responses()
    assert b"".join(answer["text_output"][0] for answer in responses) == b"\n\x0b\x0c"


def test_accumulates_the_text_of_tokens_from_the_worker(
    worker_thread: WorkerThread,
    tmp_path: Path,
    triton_utils: Any,
    transformers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with loaded(tmp_path, accumulate_tokens="true") as model:
        send = connect_worker(model, monkeypatch)
        texts = texts_of(send(stream=[[True]]).sender.responses())
    assert all(later.startswith(text) for text, later in pairwise(texts))
    assert texts[-1] == "\n\x0b\x0c"


def test_rejects_what_the_worker_does_not_support(send_to_worker: Callable[..., Request]) -> None:
    (why,) = send_to_worker(top_k=[[-1]]).sender.responses()
    assert why.startswith("runtime_top_k is -1")


def test_disconnected_client_frees_the_slot_of_the_worker(
    send_to_worker: Callable[..., Request], worker_thread: WorkerThread
) -> None:
    request = send_to_worker(HANG, stream=[[True]])
    wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
    request.sender.client_has_disconnected = True
    request.sender.responses()
    wait_until(lambda: worker_thread.engine.stats().active_requests == 0)
