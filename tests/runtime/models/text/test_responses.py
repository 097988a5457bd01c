"""Text in, text out, with stubs of the models behind the text model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton_utils import (
    InferenceRequest,
    InferenceResponse,
    Request,
    Tensor,
    TruncatedTensor,
)
from tests.runtime.models.text.stubbed_model import (
    loaded,
    make_error,
    make_outputs,
    make_request,
    make_response,
    stub_engine,
    texts_of,
)
from trtllm_serve_cli.runtime.requests.responses import merge_responses
from trtllm_serve_cli.runtime.telemetry.families import REQUESTS
from trtllm_serve_cli.runtime.triton.tensors import INTERNAL_ID_PREFIX, pack_failure


def test_streams_text_for_each_response(generate: Callable[..., list[Any]]) -> None:
    responses = generate(
        lambda request: [make_response("Ma"), make_response("chine")], stream=[[True]]
    )
    assert texts_of(responses) == ["Ma", "chine"]


def test_forwards_the_name_of_an_adapter(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[InferenceRequest] = []
    stub_engine(monkeypatch, lambda request: received.append(request) or [make_response("a")])
    for parameters in ({}, {"lora_name": "poet", "other": 1}):
        tensors = {"text_input": [[b"hi"]], "max_tokens": [[5]]}
        request = Request(tensors, parameters=parameters)
        model.execute([request])
        request.sender.responses()
    assert [each.parameters for each in received] == [{}, {"lora_name": "poet"}]


def test_returns_only_the_requested_outputs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other tensor crashes Triton 2.51 with Python 3.12."""
    stub_engine(monkeypatch, lambda request: [make_response("Ma"), make_response("\xe9")])
    tensors = {"text_input": [[b"hi"]], "max_tokens": [[5]], "stream": [[True]]}
    request = Request(tensors, requested_outputs=["text_output"])
    model.execute([request])
    assert [list(answer) for answer in request.sender.responses()] == [["text_output"]] * 2


def test_forwards_other_inputs_under_the_engines_names(generate: Callable[..., list[Any]]) -> None:
    received: list[InferenceRequest] = []

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        received.append(request)
        return []

    generate(engine, stream=[[True]], top_k=[[7]])
    (request,) = received
    inputs = {name: request.inputs[name].tolist() for name in ("streaming", "runtime_top_k")}
    assert inputs == {"streaming": [[True]], "runtime_top_k": [[7]]}
    assert request.request_id.startswith(INTERNAL_ID_PREFIX)


def test_returns_a_failure_after_the_first_token(generate: Callable[..., list[Any]]) -> None:
    failure = _failure("the worker died", was_rejected=False)
    responses = generate(lambda request: [make_response("a"), failure], stream=[[True]])
    assert responses[1:] == ["the worker died"]


def _failure(why: str, *, was_rejected: bool) -> InferenceResponse:
    packed = pack_failure(why, was_rejected=was_rejected)
    return InferenceResponse([Tensor(name, value) for name, value in packed.items()])


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_failure("no", was_rejected=True), "rejected"),
        (_failure("no", was_rejected=False), "error"),
        (make_error("[request id: a] Exceeds maximum queue size"), "rejected"),
        (make_error("Request timeout expired"), "rejected"),
        (make_error("Model 'tensorrt_llm' is not ready."), "error"),
    ],
    ids=["rejected", "failed", "queue full", "queue timeout", "model not ready"],
)
def test_counts_rejections_and_failures_separately(
    tmp_path: Path,
    triton_utils: Any,
    transformers: Any,
    monkeypatch: pytest.MonkeyPatch,
    answer: InferenceResponse,
    outcome: str,
) -> None:
    stub_engine(monkeypatch, lambda request: [answer])
    request = make_request()
    with loaded(tmp_path) as model:
        model.execute([request])
        (why,) = request.sender.responses()
    assert isinstance(why, str)
    counts = {
        each.labels["outcome"]: each.value
        for each in triton_utils.METRICS
        if each.name == REQUESTS.name
    }
    assert counts == {**dict.fromkeys(REQUESTS.values, 0), outcome: 1}


def test_rejects_an_unsupported_input(generate: Callable[..., list[Any]]) -> None:
    (why,) = generate(lambda request: [], image_input=[[1.0]])
    assert why.startswith(
        "image_input (images and video) is not supported by the scripted engine kind"
    )


def test_model_that_is_not_decoupled_merges_all_rows(
    single_response_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = merge_responses([make_outputs("later", row=1), make_outputs("Ma")])
    tensors = [Tensor(name, value) for name, value in both.items()]
    stub_engine(monkeypatch, lambda request: InferenceResponse(tensors))
    request = make_request()
    single_response_model.execute([request])
    (responses,) = request.sender.responses()
    assert responses["text_output"] == [b"Ma", b"later"]


def test_model_that_is_not_decoupled_rejects_streaming(
    single_response_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_engine(monkeypatch, lambda request: [])
    request = make_request(stream=[[True]])
    single_response_model.execute([request])
    (why,) = request.sender.responses()
    assert why.startswith("stream requires a decoupled model")


def test_unexpected_error_is_returned_and_logged(
    generate: Callable[..., list[Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(request: InferenceRequest) -> Any:
        raise KeyError("oh")

    assert generate(fail) == ["the text model failed: KeyError: 'oh'"]
    assert "Traceback (most recent call last)" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["text_input", "stop"])
def test_malformed_tensor_does_not_affect_its_batch(
    model: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stub_engine(monkeypatch, lambda request: [make_response("a")])
    requests = [make_request(), make_request(), make_request()]
    requests[1].tensors[name] = TruncatedTensor(name)
    model.execute(requests)
    before, (why,), after = (each.sender.responses() for each in requests)
    assert (texts_of(before), texts_of(after)) == (["a"], ["a"])
    assert why.startswith(f"{name} is malformed: unpack_from requires a buffer of at least 4 bytes")


def test_accumulated_pieces_contain_the_whole_text_so_far(
    tmp_path: Path, triton_utils: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_engine(
        monkeypatch,
        lambda request: [make_response("Ma"), make_response("chi"), make_response("ne")],
    )
    request = make_request(stream=[[True]])
    with loaded(tmp_path, accumulate_tokens="true") as model:
        model.execute([request])
        assert texts_of(request.sender.responses()) == ["Ma", "Machi", "Machine"]
