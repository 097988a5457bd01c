"""Requests that use a draft model, with stubs of both engines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.triton_utils import InferenceRequest, InferenceResponse, Tensor
from tests.runtime.models.text.stubbed_model import (
    Engine,
    loaded,
    make_request,
    make_response,
    send_stop,
    texts_of,
)
from tests.waiting import wait_until


def _drafting_engine(request: InferenceRequest) -> list[InferenceResponse]:
    """Continue the alphabet after the prompt, and accept all draft tokens."""
    last, count = (
        int(request.inputs[name].flat[-1]) for name in ("input_ids", "request_output_len")
    )
    return [make_response("".join(chr(last + 1 + each) for each in range(count)))]


@pytest.fixture
def drafting_model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    parameters = {
        "tensorrt_llm_draft_model_name": "drafter", "engine_kind": "tensorrt",
        "exclude_input_in_output": "true",
    }  # fmt: skip
    with loaded(tmp_path, **parameters) as model:
        yield model


def _stub_drafting_engines(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Replace `preprocessing`, `tensorrt_llm` and `drafter`. The prompt is the letter "a"."""
    preprocessed = {
        "INPUT_ID": [[ord("a")]], "REQUEST_INPUT_LEN": [[1]], "REQUEST_OUTPUT_LEN": [[5]],
        "OUT_END_ID": [[0]],
    }  # fmt: skip

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name == "preprocessing":
            return InferenceResponse(
                [Tensor(name, np.array(value)) for name, value in preprocessed.items()]
            )
        return engine(request)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)


def test_draft_tokens_are_generated_and_checked_in_turns(
    drafting_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, int]] = []

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        called.append((request.model_name, int(request.inputs["request_output_len"].flat[0])))
        return _drafting_engine(request)

    _stub_drafting_engines(monkeypatch, engine)
    request = make_request(num_draft_tokens=[[2]])
    drafting_model.execute([request])
    assert texts_of(request.sender.responses()) == ["bcdef"]
    assert called == [("drafter", 2), ("tensorrt_llm", 3), ("drafter", 1), ("tensorrt_llm", 2)]


def test_cancelled_request_stops_both_models(
    drafting_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    is_stopped = threading.Event()

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        if "stop" in request.inputs:
            stopped.append(request.model_name)
            if set(stopped) == {"tensorrt_llm", "drafter"}:
                is_stopped.set()
            return []
        sent.sender.client_has_disconnected = True
        assert is_stopped.wait(60)
        return _drafting_engine(request)

    _stub_drafting_engines(monkeypatch, engine)
    sent = make_request(num_draft_tokens=[[2]])
    drafting_model.execute([sent])
    assert sent.sender.responses() == []


def test_stopped_request_stops_both_models_and_returns_the_text_so_far(
    drafting_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: set[str] = set()

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        if "stop" in request.inputs:
            stopped.add(request.model_name)
            return []
        if request.model_name == "tensorrt_llm":
            assert send_stop(drafting_model, "a") == [{}]
            wait_until(lambda: stopped == {"tensorrt_llm", "drafter"})
        return _drafting_engine(request)

    _stub_drafting_engines(monkeypatch, engine)
    sent = make_request(request_id="a", num_draft_tokens=[[2]])
    drafting_model.execute([sent])
    assert texts_of(sent.sender.responses()) == ["bcd"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("tensorrt", "num_draft_tokens requires a draft model, but tensorrt_llm_draft_model_name"),
        (
            "vllm",
            "num_draft_tokens (draft tokens from the client) is not supported by the vllm",
        ),
    ],
)
def test_draft_tokens_require_a_draft_model(
    tmp_path: Path,
    triton_utils: Any,
    transformers: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    why: str,
) -> None:
    _stub_drafting_engines(monkeypatch, _drafting_engine)
    request = make_request(num_draft_tokens=[[2]])
    with loaded(tmp_path, engine_kind=kind) as model:
        model.execute([request])
        (answer,) = request.sender.responses()
    assert answer.startswith(why)
