"""Text in, text out, with the models behind it played by the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.scripted_worker import COUNT, HANG
from tests.fakes.triton_utils import InferenceRequest, InferenceResponse, Request, Tensor
from tests.fakes.worker_house import House
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.requests.responses import merge_answers
from trtllm_serve_cli.runtime.telemetry.families import REQUESTS
from trtllm_serve_cli.runtime.triton.tensors import INTERNAL_ID_PREFIX, pack_failure, pack_sequences
from trtllm_serve_cli.runtime.worker.stop_forwarding import StopForwarder, stop_socket_name
from trtllm_serve_cli.runtime.worker.worker_link import shared_socket_name

_INPUTS = ("text_input", "max_tokens", "stream", "top_k", "image_input")
_PREPROCESSED = (
    "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "STOP_WORDS_IDS", "BAD_WORDS_IDS",
    "OUT_END_ID", "OUT_PAD_ID",
)  # fmt: skip
Answer = Callable[[InferenceRequest], Any]


@pytest.fixture
def model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with _loaded(tmp_path) as model:
        yield model


@pytest.fixture
def model_of_one_answer(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with _loaded(tmp_path, decoupled=False) as model:
        yield model


@contextmanager
def _loaded(folder: Path, *, decoupled: bool = True) -> Iterator[Any]:
    from trtllm_serve_cli.runtime.models.text import TritonPythonModel

    values = {"tokenizer_dir": str(folder), "engine_kind": "scripted", "ask_preprocessing": "true"}
    config = {
        "input": [{"name": name} for name in _INPUTS],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {
            name: {"string_value": value}
            for name, value in {**values, "cancellation_check_period_ms": "1"}.items()
        },
    }
    args = {"model_config": json.dumps(config), "model_name": "ensemble", "model_version": "1"}
    model = TritonPythonModel()
    model.initialize(args)
    yield model
    model.finalize()


def _play(monkeypatch: pytest.MonkeyPatch, engine: Answer) -> None:
    """Let `engine` answer as `tensorrt_llm`."""

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name == "preprocessing":
            return InferenceResponse([Tensor(each, np.array([[1]])) for each in _PREPROCESSED])
        return engine(request)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)


def _request(**tensors: Any) -> Request:
    return Request({"text_input": [[b"hi"]], "max_tokens": [[5]], **tensors})


@pytest.fixture
def ask(model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What the text model answers when the engine answers so."""

    def ask(engine: Answer, **tensors: Any) -> list[Any]:
        _play(monkeypatch, engine)
        request = _request(**tensors)
        model.execute([request])
        return request.sender.told()

    return ask


def _tokens(text: str) -> InferenceResponse:
    return InferenceResponse([Tensor(name, value) for name, value in _outputs(text).items()])


def _outputs(text: str, row: int = 0) -> dict[str, Any]:
    packed = pack_sequences([[ord(letter) for letter in text]], [[]], 0)
    packed |= {"batch_index": np.array([[row]]), "sequence_index": np.array([[0]])}
    return packed


def _texts(answers: list[Any]) -> list[str]:
    return [answer["text_output"][0].decode() for answer in answers]


def test_tokens_become_text_as_they_come(ask: Callable[..., list[Any]]) -> None:
    told = ask(lambda request: [_tokens("Ma"), _tokens("chine")], stream=[[True]])
    assert _texts(told) == ["Ma", "chine"]


def test_the_name_of_an_adapter_is_passed_on(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[InferenceRequest] = []
    _play(monkeypatch, lambda request: asked.append(request) or [_tokens("a")])
    for parameters in ({}, {"lora_name": "poet", "other": 1}):
        tensors = {"text_input": [[b"hi"]], "max_tokens": [[5]]}
        request = Request(tensors, parameters=parameters)
        model.execute([request])
        request.sender.told()
    assert [each.parameters for each in asked] == [{}, {"lora_name": "poet"}]


def test_only_what_is_asked_for_is_told(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor more, and Triton 2.51 ends its process under Python 3.12."""
    _play(monkeypatch, lambda request: [_tokens("Ma"), _tokens("\xe9")])
    tensors = {"text_input": [[b"hi"]], "max_tokens": [[5]], "stream": [[True]]}
    request = Request(tensors, wanted=["text_output"])
    model.execute([request])
    assert [list(answer) for answer in request.sender.told()] == [["text_output"]] * 2


def test_other_inputs_go_on_under_the_engines_names(ask: Callable[..., list[Any]]) -> None:
    asked: list[InferenceRequest] = []

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        asked.append(request)
        return []

    ask(engine, stream=[[True]], top_k=[[7]])
    (request,) = asked
    given = {name: request.inputs[name].tolist() for name in ("streaming", "runtime_top_k")}
    assert given == {"streaming": [[True]], "runtime_top_k": [[7]]}
    assert request.request_id.startswith(INTERNAL_ID_PREFIX)


def test_a_failure_after_the_first_token_is_told(ask: Callable[..., list[Any]]) -> None:
    failure = _failure("the worker died", was_refused=False)
    told = ask(lambda request: [_tokens("a"), failure], stream=[[True]])
    assert told[1:] == ["the worker died"]


def _failure(why: str, *, was_refused: bool) -> InferenceResponse:
    packed = pack_failure(why, was_refused=was_refused)
    return InferenceResponse([Tensor(name, value) for name, value in packed.items()])


def _error(why: str) -> InferenceResponse:
    return InferenceResponse(error=pb_utils.TritonError(why))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_failure("no", was_refused=True), "rejected"),
        (_failure("no", was_refused=False), "error"),
        (_error("[request id: a] Exceeds maximum queue size"), "rejected"),
        (_error("Request timeout expired"), "rejected"),
        (_error("Model 'tensorrt_llm' is not ready."), "error"),
    ],
    ids=["refused", "failed", "no room in the queue", "too long in the queue", "not there"],
)
def test_what_is_refused_counts_as_refused_whoever_refuses_it(
    tmp_path: Path,
    triton_utils: Any,
    transformers: Any,
    monkeypatch: pytest.MonkeyPatch,
    answer: InferenceResponse,
    outcome: str,
) -> None:
    _play(monkeypatch, lambda request: [answer])
    request = _request()
    with _loaded(tmp_path) as model:
        model.execute([request])
        (why,) = request.sender.told()
    assert isinstance(why, str)
    counts = {
        each.labels["outcome"]: each.value
        for each in triton_utils.METRICS
        if each.name == REQUESTS.name
    }
    assert counts == {**dict.fromkeys(REQUESTS.values, 0), outcome: 1}


def test_a_tensor_that_leads_nowhere_is_refused(ask: Callable[..., list[Any]]) -> None:
    (why,) = ask(lambda request: [], image_input=[[1.0]])
    assert why.startswith(
        "image_input (images and video) is not supported by the engine kind scripted"
    )


def test_a_model_of_one_answer_puts_all_rows_into_it(
    model_of_one_answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = merge_answers([_outputs("later", row=1), _outputs("Ma")])
    tensors = [Tensor(name, value) for name, value in both.items()]
    _play(monkeypatch, lambda request: InferenceResponse(tensors))
    request = _request()
    model_of_one_answer.execute([request])
    (told,) = request.sender.told()
    assert told["text_output"] == [b"Ma", b"later"]


def test_a_model_of_one_answer_does_not_stream(
    model_of_one_answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _play(monkeypatch, lambda request: [])
    request = _request(stream=[[True]])
    model_of_one_answer.execute([request])
    (why,) = request.sender.told()
    assert why.startswith("stream needs a decoupled model")


@pytest.fixture
def house() -> Iterator[House]:
    """The engine worker of `tensorrt_llm`."""
    started = House(shared_socket_name("tensorrt_llm"), for_guests={"excludes_input": True})
    yield started
    started.close()


@pytest.fixture
def at_the_worker(
    house: House, model: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Request]:
    """Sends a request that only preprocessing and the engine worker answer."""
    tensors = {"REQUEST_INPUT_LEN": [[1]], "REQUEST_OUTPUT_LEN": [[3]]}

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name != "preprocessing":
            return [_error("not at the worker")]
        return InferenceResponse([Tensor(name, np.array(each)) for name, each in tensors.items()])

    def ask(command: int = COUNT, **more: Any) -> Request:
        tensors["INPUT_ID"] = [[command]]
        request = _request(**more)
        model.execute([request])
        return request

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)
    wait_until(lambda: ask().sender.told() != ["not at the worker"])
    return ask


def test_tokens_come_from_the_worker_itself(at_the_worker: Callable[..., Request]) -> None:
    told = at_the_worker(stream=[[True]]).sender.told()
    assert b"".join(answer["text_output"][0] for answer in told) == b"\n\x0b\x0c"


def test_what_the_worker_cannot_take_is_refused(at_the_worker: Callable[..., Request]) -> None:
    (why,) = at_the_worker(top_k=[[-1]]).sender.told()
    assert why.startswith("runtime_top_k is -1")


def test_a_caller_who_goes_is_forgotten_by_the_worker(
    at_the_worker: Callable[..., Request], house: House
) -> None:
    request = at_the_worker(HANG, stream=[[True]])
    wait_until(lambda: house.engine.stats().active_requests == 1)
    request.sender.caller_has_gone = True
    request.sender.told()
    wait_until(lambda: house.engine.stats().active_requests == 0)


def test_what_nobody_foresaw_is_told_and_logged(
    ask: Callable[..., list[Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(request: InferenceRequest) -> Any:
        raise KeyError("oh")

    assert ask(fail) == ["the text model failed: KeyError: 'oh'"]
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_a_caller_who_goes_before_the_engine_knows_is_stopped_still(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stop finds nothing to end, since the request is still on its way."""
    stops: list[str] = []

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if "stop" in request.inputs:
            stops.append(request.request_id)
            if len(stops) == 1:
                yield InferenceResponse(error=pb_utils.TritonError("is not running"))
            return
        while len(stops) < 2:
            yield _tokens("a")

    _play(monkeypatch, engine)
    request = _request()
    request.sender.caller_has_gone = True
    model.execute([request])
    assert set(_texts(request.sender.told())) == {"a"}
    assert len(set(stops)) == 1


def test_a_stop_goes_past_the_queue_where_somebody_listens_for_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request, it would wait behind those that wait for the slot that it is to free."""
    stopped = threading.Event()
    asked: list[InferenceRequest] = []
    running: set[str] = set()

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        asked.append(request)
        assert stopped.wait(60)
        running.add(request.request_id)
        yield _tokens("a")

    def stop(request_id: str) -> bool:
        stopped.set()
        return request_id in running

    _play(monkeypatch, engine)
    relay = StopForwarder(stop_socket_name("tensorrt_llm"), stop)
    request = _request()
    request.sender.caller_has_gone = True
    model.execute([request])
    told = request.sender.told()
    relay.close()
    assert (_texts(told), len(asked)) == (["a"], 1)
