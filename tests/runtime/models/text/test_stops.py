"""Stop requests to the text model, and requests that the client cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import triton_utils as pb_utils
from tests.fakes.scripted_worker import COUNT, HANG
from tests.fakes.triton_utils import InferenceRequest, InferenceResponse, Request
from tests.fakes.worker_thread import WorkerThread
from tests.runtime.models.text.stubbed_model import (
    loaded,
    make_request,
    make_response,
    send_stop,
    stub_engine,
    texts_of,
)
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.triton.tensors import INTERNAL_ID_PREFIX
from trtllm_serve_cli.runtime.worker.stop_forwarding import (
    StopForwarder,
    caller_socket_name,
    forward_stop,
    stop_socket_name,
)


def test_stop_ends_the_request_with_the_id_and_frees_its_slot(
    send_to_worker: Callable[..., Request], model: Any, worker_thread: WorkerThread
) -> None:
    request = send_to_worker(HANG, request_id="a")
    wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
    assert send_stop(model, "a") == [{}]
    assert texts_of(request.sender.responses()) == [""]
    wait_until(lambda: worker_thread.engine.stats().active_requests == 0)


def test_stop_reaches_the_instance_that_runs_the_request(
    send_to_worker: Callable[..., Request], tmp_path: Path, worker_thread: WorkerThread
) -> None:
    with loaded(tmp_path) as other:
        request = send_to_worker(HANG, request_id="a")
        wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
        assert (send_stop(other, "a"), len(request.sender.responses())) == ([{}], 1)
        assert "no running request" in send_stop(other, "a")[0]


def test_stop_that_tensorrt_llm_forwards_ends_all_requests_with_the_id(
    send_to_worker: Callable[..., Request], tmp_path: Path, worker_thread: WorkerThread
) -> None:
    with loaded(tmp_path):
        same_id = [send_to_worker(HANG, request_id="a") for _ in range(2)]
        other_id = send_to_worker(HANG, request_id="b")
        wait_until(lambda: worker_thread.engine.stats().active_requests == 3)
        # The result of the other instance, which runs no request, is false.
        assert sorted(_stop_from_engine("a")) == [False, True]
        assert [texts_of(each.sender.responses()) for each in same_id] == [[""], [""]]
        wait_until(lambda: worker_thread.engine.stats().active_requests == 1)
        assert _stop_from_engine("a") == [False, False]
        assert sorted(_stop_from_engine("b")) == [False, True]
        assert texts_of(other_id.sender.responses()) == [""]


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
    assert send_stop(model, request_id) == [
        f"no running request has the id {request_id!r}; send a stop request with the id of a "
        "running request"
    ]


def test_id_of_a_finished_request_is_released(
    send_to_worker: Callable[..., Request], model: Any
) -> None:
    send_to_worker(COUNT, request_id="a").sender.responses()
    wait_until(lambda: "no running request" in str(send_stop(model, "a")))


def test_stop_ends_a_request_whose_prompt_is_still_being_encoded(
    send_to_worker: Callable[..., Request], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stopped, execute = threading.Event(), pb_utils.InferenceRequest.exec

    def preprocess_late(request: InferenceRequest, decoupled: bool = False) -> Any:
        assert is_stopped.wait(60)
        return execute(request, decoupled)

    monkeypatch.setattr(pb_utils.InferenceRequest, "exec", preprocess_late)
    request = send_to_worker(HANG, request_id="a")
    assert send_stop(model, "a") == [{}]
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
            yield make_response("a")

    stub_engine(monkeypatch, engine)
    sent = make_request(request_id=request_id)
    model.execute([sent])
    assert texts_of(sent.sender.responses()) == ["a"]
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
        assert send_stop(model, "a") == [{}]
        wait_until(lambda: len(stops) >= 2)
        yield make_response(f"{request.request_id in stops}")

    stub_engine(monkeypatch, engine)
    sent = make_request(request_id="a", stop=[[False]])
    model.execute([sent])
    assert texts_of(sent.sender.responses()) == ["True"]
    wait_until(lambda: "no running request" in str(send_stop(model, "a")))


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
            yield make_response("a")

    stub_engine(monkeypatch, engine)
    sent = make_request()
    model.execute([sent])
    assert set(texts_of(sent.sender.responses())) == {"a"}
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
        yield make_response("a")

    def stop(request_id: str) -> bool:
        stopped.set()
        return request_id in running

    stub_engine(monkeypatch, engine)
    forwarder = StopForwarder(stop_socket_name("tensorrt_llm"), stop)
    sent = make_request()
    model.execute([sent])
    responses = sent.sender.responses()
    forwarder.close()
    assert (responses, len(received)) == ([], 1)


def test_cancelled_stream_has_no_more_responses(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 2.51 can crash if a response follows the cancellation."""
    is_stopped = threading.Event()

    def engine(request: InferenceRequest) -> Iterator[InferenceResponse]:
        if "stop" in request.inputs:
            is_stopped.set()
            return
        yield make_response("a")
        sent.sender.client_has_disconnected = True
        assert is_stopped.wait(60)
        yield make_response("b")

    stub_engine(monkeypatch, engine)
    sent = make_request(stream=[[True]])
    model.execute([sent])
    assert texts_of(sent.sender.responses()) == ["a"]


def test_request_that_was_cancelled_while_it_waited_does_not_reach_the_engine(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[InferenceRequest] = []

    def engine(request: InferenceRequest) -> list[InferenceResponse]:
        called.append(request)
        return [make_response("a")]

    stub_engine(monkeypatch, engine)
    request = make_request()
    request.sender.client_has_disconnected = True
    model.execute([request])
    assert (request.sender.responses(), called) == (["the client cancelled the request"], [])
