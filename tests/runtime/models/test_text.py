"""Text in, text out, with stubs of the models behind the text model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.scripted_worker import COUNT, HANG
from tests.fakes.triton_utils import (
    InferenceRequest,
    InferenceResponse,
    Request,
    Tensor,
    TruncatedTensor,
)
from tests.fakes.worker_thread import WorkerThread
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.requests.responses import merge_responses
from trtllm_serve_cli.runtime.telemetry.families import REQUESTS
from trtllm_serve_cli.runtime.triton.tensors import INTERNAL_ID_PREFIX, pack_failure, pack_sequences
from trtllm_serve_cli.runtime.worker.stop_forwarding import (
    StopForwarder,
    caller_socket_name,
    forward_stop,
    stop_socket_name,
)
from trtllm_serve_cli.runtime.worker.worker_link import shared_socket_name

_INPUTS = (
    "text_input", "max_tokens", "stream", "top_k", "image_input", "num_draft_tokens", "stop",
)  # fmt: skip
_PREPROCESSED = (
    "INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN", "STOP_WORDS_IDS", "BAD_WORDS_IDS",
    "OUT_END_ID", "OUT_PAD_ID",
)  # fmt: skip
Engine = Callable[[InferenceRequest], Any]


@pytest.fixture
def model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with _loaded(tmp_path) as model:
        yield model


@pytest.fixture
def single_response_model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    with _loaded(tmp_path, decoupled=False) as model:
        yield model


@contextmanager
def _loaded(folder: Path, *, decoupled: bool = True, **parameters: str) -> Iterator[Any]:
    from trtllm_serve_cli.runtime.models.text import TritonPythonModel

    values = {"tokenizer_dir": str(folder), "engine_kind": "scripted", "ask_preprocessing": "true"}
    values |= parameters
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


def _stub_engine(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Replace `tensorrt_llm` by `engine`."""

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name == "preprocessing":
            return InferenceResponse([Tensor(each, np.array([[1]])) for each in _PREPROCESSED])
        return engine(request)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)


def _request(*, request_id: str = "", **tensors: Any) -> Request:
    return Request({"text_input": [[b"hi"]], "max_tokens": [[5]], **tensors}, request_id)


def _stop(model: Any, request_id: str) -> list[Any]:
    """Send a stop request to `model`, and return the responses."""
    request = _request(request_id=request_id, stop=[[True]])
    model.execute([request])
    return request.sender.responses()


@pytest.fixture
def generate(model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Send a request to the text model with a stub engine, and return the responses."""

    def generate(engine: Engine, **tensors: Any) -> list[Any]:
        _stub_engine(monkeypatch, engine)
        request = _request(**tensors)
        model.execute([request])
        return request.sender.responses()

    return generate


def _tokens(text: str) -> InferenceResponse:
    return InferenceResponse([Tensor(name, value) for name, value in _outputs(text).items()])


def _outputs(text: str, row: int = 0) -> dict[str, Any]:
    packed = pack_sequences([[ord(letter) for letter in text]], 0)
    packed |= {"batch_index": np.array([[row]]), "sequence_index": np.array([[0]])}
    return packed


def _texts(answers: list[Any]) -> list[str]:
    return [answer["text_output"][0].decode() for answer in answers]


def test_streams_text_for_each_response(generate: Callable[..., list[Any]]) -> None:
    responses = generate(lambda request: [_tokens("Ma"), _tokens("chine")], stream=[[True]])
    assert _texts(responses) == ["Ma", "chine"]


def test_forwards_the_name_of_an_adapter(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[InferenceRequest] = []
    _stub_engine(monkeypatch, lambda request: received.append(request) or [_tokens("a")])
    for parameters in ({}, {"lora_name": "poet", "other": 1}):
        tensors = {"text_input": [[b"hi"]], "max_tokens": [[5]]}
        request = Request(tensors, parameters=parameters)
        model.execute([request])
        request.sender.responses()
    assert [each.parameters for each in received] == [{}, {"lora_name": "poet"}]


def test_returns_only_the_requested_outputs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other tensor crashes Triton 2.51 with Python 3.12."""
    _stub_engine(monkeypatch, lambda request: [_tokens("Ma"), _tokens("\xe9")])
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
    responses = generate(lambda request: [_tokens("a"), failure], stream=[[True]])
    assert responses[1:] == ["the worker died"]


def _failure(why: str, *, was_rejected: bool) -> InferenceResponse:
    packed = pack_failure(why, was_rejected=was_rejected)
    return InferenceResponse([Tensor(name, value) for name, value in packed.items()])


def _error(why: str) -> InferenceResponse:
    return InferenceResponse(error=pb_utils.TritonError(why))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_failure("no", was_rejected=True), "rejected"),
        (_failure("no", was_rejected=False), "error"),
        (_error("[request id: a] Exceeds maximum queue size"), "rejected"),
        (_error("Request timeout expired"), "rejected"),
        (_error("Model 'tensorrt_llm' is not ready."), "error"),
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
    _stub_engine(monkeypatch, lambda request: [answer])
    request = _request()
    with _loaded(tmp_path) as model:
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
    both = merge_responses([_outputs("later", row=1), _outputs("Ma")])
    tensors = [Tensor(name, value) for name, value in both.items()]
    _stub_engine(monkeypatch, lambda request: InferenceResponse(tensors))
    request = _request()
    single_response_model.execute([request])
    (responses,) = request.sender.responses()
    assert responses["text_output"] == [b"Ma", b"later"]


def test_model_that_is_not_decoupled_rejects_streaming(
    single_response_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stub_engine(monkeypatch, lambda request: [])
    request = _request(stream=[[True]])
    single_response_model.execute([request])
    (why,) = request.sender.responses()
    assert why.startswith("stream requires a decoupled model")


@pytest.fixture
def worker_thread() -> Iterator[WorkerThread]:
    """Run the engine worker of `tensorrt_llm`."""
    started = WorkerThread(
        shared_socket_name("tensorrt_llm"), client_settings={"excludes_input": True}
    )
    yield started
    started.close()


@pytest.fixture
def send_to_worker(
    worker_thread: WorkerThread, model: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Request]:
    """Send a request that only preprocessing and the engine worker process."""
    return _connect_worker(model, monkeypatch)


def _connect_worker(model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """Wait until `model` uses the engine worker. Return a function that sends a request."""
    tensors = {"REQUEST_INPUT_LEN": [[1]], "REQUEST_OUTPUT_LEN": [[3]]}

    def execute(request: InferenceRequest, decoupled: bool = False) -> Any:
        if request.model_name != "preprocessing":
            return [_error("not at the worker")]
        return InferenceResponse([Tensor(name, np.array(each)) for name, each in tensors.items()])

    def generate(command: int = COUNT, **more: Any) -> Request:
        tensors["INPUT_ID"] = [[command]]
        request = _request(**more)
        model.execute([request])
        return request

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", execute)
    wait_until(lambda: generate().sender.responses() != ["not at the worker"])
    return generate


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
    with _loaded(tmp_path, accumulate_tokens="true") as model:
        send = _connect_worker(model, monkeypatch)
        texts = _texts(send(stream=[[True]]).sender.responses())
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


def test_stop_ends_the_request_with_the_id_and_frees_its_slot(
    send_to_worker: Callable[..., Request], model: Any, worker_thread: WorkerThread
) -> None:
    request = send_to_worker(HANG, request_id="a")
    wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
    assert _stop(model, "a") == [{}]
    assert _texts(request.sender.responses()) == [""]
    wait_until(lambda: worker_thread.engine.stats().active_requests == 0)


def test_stop_reaches_the_instance_that_runs_the_request(
    send_to_worker: Callable[..., Request], tmp_path: Path, worker_thread: WorkerThread
) -> None:
    with _loaded(tmp_path) as other:
        request = send_to_worker(HANG, request_id="a")
        wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
        assert (_stop(other, "a"), len(request.sender.responses())) == ([{}], 1)
        assert "no running request" in _stop(other, "a")[0]


def test_stop_that_tensorrt_llm_forwards_ends_all_requests_with_the_id(
    send_to_worker: Callable[..., Request], tmp_path: Path, worker_thread: WorkerThread
) -> None:
    with _loaded(tmp_path):
        same_id = [send_to_worker(HANG, request_id="a") for _ in range(2)]
        other_id = send_to_worker(HANG, request_id="b")
        wait_until(lambda: worker_thread.engine.stats().active_requests == 3)
        # The result of the other instance, which runs no request, is false.
        assert sorted(_stop_from_engine("a")) == [False, True]
        assert [_texts(each.sender.responses()) for each in same_id] == [[""], [""]]
        wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
        assert _stop_from_engine("a") == [False, False]
        assert sorted(_stop_from_engine("b")) == [False, True]
        assert _texts(other_id.sender.responses()) == [""]


def _stop_from_engine(request_id: str) -> list[bool]:
    """Forward a stop request like `tensorrt_llm`, and return the result of each text model."""
    return forward_stop(caller_socket_name("tensorrt_llm"), request_id)


def test_receives_no_stops_from_other_models_than_its_engine(
    send_to_worker: Callable[..., Request],
) -> None:
    send_to_worker(HANG, request_id="a")
    for group in (caller_socket_name("ensemble"), caller_socket_name("drafter")):
        assert forward_stop(group, "a") == []


@pytest.mark.parametrize("request_id", ["b", ""])
def test_rejects_a_stop_for_an_id_that_is_not_running(
    send_to_worker: Callable[..., Request], model: Any, request_id: str
) -> None:
    for running_id in ("a", ""):
        send_to_worker(HANG, request_id=running_id)
    assert _stop(model, request_id) == [
        f"no running request has the id {request_id!r}; send a stop request with the id of a "
        "running request"
    ]


def test_id_of_a_finished_request_is_released(
    send_to_worker: Callable[..., Request], model: Any
) -> None:
    send_to_worker(COUNT, request_id="a").sender.responses()
    wait_until(lambda: "no running request" in str(_stop(model, "a")))


def test_stop_ends_a_request_whose_prompt_is_still_being_encoded(
    send_to_worker: Callable[..., Request], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stopped, execute = threading.Event(), pb_utils.InferenceRequest.exec

    def preprocess_late(request: InferenceRequest, decoupled: bool = False) -> Any:
        assert is_stopped.wait(60)
        return execute(request, decoupled)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", preprocess_late)
    request = send_to_worker(HANG, request_id="a")
    assert _stop(model, "a") == [{}]
    is_stopped.set()
    assert len(request.sender.responses()) <= 1


def test_stop_from_tensorrt_llm_ends_a_request_that_it_does_not_run_yet(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id looks like an internal id, and the request to `tensorrt_llm` has another one."""
    request_id = f"{INTERNAL_ID_PREFIX}1"
    internal_ids: list[str] = []

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        internal_ids.append(request.request_id)
        if "stop" not in request.inputs:
            assert _stop_from_engine(request.request_id) == [False]
            assert _stop_from_engine(request_id) == [True]
            wait_until(lambda: len(internal_ids) >= 2)
            yield _tokens("a")

    _stub_engine(monkeypatch, engine)
    sent = _request(request_id=request_id)
    model.execute([sent])
    assert _texts(sent.sender.responses()) == ["a"]
    assert len(set(internal_ids)) == 1 and request_id not in internal_ids
    wait_until(lambda: _stop_from_engine(request_id) == [False])


def test_stop_ends_the_request_to_tensorrt_llm_and_returns_the_text_so_far(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stop of `tensorrt_llm` has no effect, because it does not run the request yet."""
    stops: list[str] = []

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if "stop" in request.inputs:
            stops.append(request.request_id)
            return
        assert _stop(model, "a") == [{}]
        wait_until(lambda: len(stops) >= 2)
        yield _tokens(f"{request.request_id in stops}")

    _stub_engine(monkeypatch, engine)
    sent = _request(request_id="a", stop=[[False]])
    model.execute([sent])
    assert _texts(sent.sender.responses()) == ["True"]
    wait_until(lambda: "no running request" in str(_stop(model, "a")))


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
    _stub_engine(monkeypatch, lambda request: [_tokens("a")])
    requests = [_request(), _request(), _request()]
    requests[1].tensors[name] = TruncatedTensor(name)
    model.execute(requests)
    before, (why,), after = (each.sender.responses() for each in requests)
    assert (_texts(before), _texts(after)) == (["a"], ["a"])
    assert why.startswith(f"{name} is malformed: unpack_from requires a buffer of at least 4 bytes")


def test_stop_is_repeated_until_the_engine_runs_the_request(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stop has no effect, because the engine does not run the request yet."""
    stops: list[str] = []

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if "stop" in request.inputs:
            stops.append(request.request_id)
            if len(stops) == 1:
                yield InferenceResponse(error=pb_utils.TritonError("is not running"))
            return
        sent.sender.client_has_disconnected = True
        while len(stops) < 2:
            yield _tokens("a")

    _stub_engine(monkeypatch, engine)
    sent = _request()
    model.execute([sent])
    assert set(_texts(sent.sender.responses())) == {"a"}
    assert len(set(stops)) == 1


def test_stop_bypasses_the_queue(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop request would wait behind requests that wait for the slot."""
    stopped = threading.Event()
    received: list[InferenceRequest] = []
    running: set[str] = set()

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        received.append(request)
        sent.sender.client_has_disconnected = True
        assert stopped.wait(60)
        running.add(request.request_id)
        yield _tokens("a")

    def stop(request_id: str) -> bool:
        stopped.set()
        return request_id in running

    _stub_engine(monkeypatch, engine)
    forwarder = StopForwarder(stop_socket_name("tensorrt_llm"), stop)
    sent = _request()
    model.execute([sent])
    responses = sent.sender.responses()
    forwarder.close()
    assert (responses, len(received)) == ([], 1)


def test_accumulated_pieces_contain_the_whole_text_so_far(
    tmp_path: Path, triton_utils: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stub_engine(monkeypatch, lambda request: [_tokens("Ma"), _tokens("chi"), _tokens("ne")])
    request = _request(stream=[[True]])
    with _loaded(tmp_path, accumulate_tokens="true") as model:
        model.execute([request])
        assert _texts(request.sender.responses()) == ["Ma", "Machi", "Machine"]


def _drafting_engine(request: InferenceRequest) -> list[InferenceResponse]:
    """Continue the alphabet after the prompt, and accept all draft tokens."""
    last, count = (
        int(request.inputs[name].flat[-1]) for name in ("input_ids", "request_output_len")
    )
    return [_tokens("".join(chr(last + 1 + each) for each in range(count)))]


@pytest.fixture
def drafting_model(tmp_path: Path, triton_utils: Any, transformers: Any) -> Iterator[Any]:
    parameters = {
        "tensorrt_llm_draft_model_name": "drafter", "engine_kind": "tensorrt",
        "exclude_input_in_output": "true",
    }  # fmt: skip
    with _loaded(tmp_path, **parameters) as model:
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
    request = _request(num_draft_tokens=[[2]])
    drafting_model.execute([request])
    assert _texts(request.sender.responses()) == ["bcdef"]
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
    sent = _request(num_draft_tokens=[[2]])
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
            assert _stop(drafting_model, "a") == [{}]
            wait_until(lambda: stopped == {"tensorrt_llm", "drafter"})
        return _drafting_engine(request)

    _stub_drafting_engines(monkeypatch, engine)
    sent = _request(request_id="a", num_draft_tokens=[[2]])
    drafting_model.execute([sent])
    assert _texts(sent.sender.responses()) == ["bcd"]


def test_cancelled_stream_has_no_more_responses(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 2.51 can crash if a response follows the cancellation."""
    is_stopped = threading.Event()

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if "stop" in request.inputs:
            is_stopped.set()
            return
        yield _tokens("a")
        sent.sender.client_has_disconnected = True
        assert is_stopped.wait(60)
        yield _tokens("b")

    _stub_engine(monkeypatch, engine)
    sent = _request(stream=[[True]])
    model.execute([sent])
    assert _texts(sent.sender.responses()) == ["a"]


def test_request_that_was_cancelled_while_it_waited_does_not_reach_the_engine(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[InferenceRequest] = []

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        called.append(request)
        return [_tokens("a")]

    _stub_engine(monkeypatch, engine)
    request = _request()
    request.sender.client_has_disconnected = True
    model.execute([request])
    assert (request.sender.responses(), called) == (["the client cancelled the request"], [])


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
    request = _request(num_draft_tokens=[[2]])
    with _loaded(tmp_path, engine_kind=kind) as model:
        model.execute([request])
        (answer,) = request.sender.responses()
    assert answer.startswith(why)
