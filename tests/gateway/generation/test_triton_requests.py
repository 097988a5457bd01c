"""Test requests that the gateway sends to the model `tensorrt_llm` of a fake Triton."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.triton.answers import Answer, ConnectionLost, ModelError, Outputs, Request, tokens
from tests.fakes.triton.server import FakeTriton, list_inputs
from tests.gateway.generation.triton_sender import (
    Backend,
    ids_of,
    request,
    run,
    status_of,
    wait_until,
)
from tests.ports import free_ports
from tests.samples.certificates import certify
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.gateway.errors import ApiError


def answers(*responses: Outputs, error: Exception | None = None) -> Answer:
    """Return an answer of these responses, followed by an error."""

    def answer(request: Request) -> Iterator[Outputs]:
        yield from responses
        if error is not None:
            raise error

    return answer


def response(*ids: int, index: int | None = None) -> Outputs:
    outputs: Outputs = {"output_ids": list(ids), "sequence_length": [len(ids)]}
    return outputs if index is None else {**outputs, "sequence_index": [index]}


def test_each_token_is_an_update() -> None:
    with FakeTriton(answer=answers(response(65), response(66), response(67))) as triton:
        updates = request(triton, stop_words=((1, 2),), seed=5)
    assert [each.token_ids for each in updates] == [(65,), (66,), (67,), ()]
    assert updates[-1].finish_reason == "length"
    (sent,) = triton.received
    assert (sent["input_ids"], sent["request_output_len"], sent["seed"]) == ([7, 8], 3, 5)
    assert (sent["streaming"], sent["stop_words_list"]) == (True, [1, 2, 2, -1])


def test_fewer_tokens_than_requested_end_with_a_stop() -> None:
    with FakeTriton(answer=answers(response(65))) as triton:
        updates = request(triton)
    assert (ids_of(updates), updates[-1].finish_reason) == ([65], "stop")


def test_sequences_end_separately() -> None:
    responses = (response(65, index=0), response(66, index=1), response(67, 68, index=1))
    with FakeTriton(answer=answers(*responses)) as triton:
        updates = request(triton, num_sequences=2)
    assert (ids_of(updates, 0), ids_of(updates, 1)) == ([65], [66, 67, 68])
    reasons = {each.sequence_index: each.finish_reason for each in updates if each.finish_reason}
    assert reasons == {0: "stop", 1: "length"}


@pytest.mark.parametrize(
    ("inputs", "ids"),
    [
        (("input_ids", "input_lengths", "request_output_len"), (7, 8, 65, 66, 67)),
        ((), (65, 66, 67)),  # this model can exclude the prompt
    ],
)
def test_whole_response_has_no_prompt(inputs: tuple[str, ...], ids: tuple[int, ...]) -> None:
    answer = answers(response(*ids))
    with FakeTriton(answer=answer, is_decoupled=False, input_names=inputs) as triton:
        updates = request(triton)
    assert (ids_of(updates), updates[-1].finish_reason) == ([65, 66, 67], "length")


def test_log_probabilities_belong_to_their_tokens() -> None:
    outputs = {**response(65, 66), "output_log_probs": [-0.5, -1.5]}
    with FakeTriton(answer=answers(outputs)) as triton:
        updates = request(triton, return_log_probs=True)
    assert [each.log_probs for each in updates] == [(-0.5, -1.5), ()]
    assert triton.received[0]["return_log_probs"] is True


def test_trace_is_passed_on() -> None:
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    with FakeTriton(answer=answers(response(65))) as triton:
        request(triton, trace_parent=trace)
    (headers,) = (headers for name, headers in triton.calls if name == "ModelStreamInfer")
    assert headers["traceparent"] == trace


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("max_tokens must be at least 1", 400),
        ("Exceeds maximum queue size", 429),
        ("the engine worker has died; retry the request", 503),
        (
            "Error storing task=5 in PEFT cache -- Cache is full. There are no done tasks to evict",
            503,
        ),
        ("the engine worker was closed, because the model is being unloaded", 503),
    ],
)
def test_error_before_the_first_token(message: str, status: int) -> None:
    with FakeTriton(answer=answers(error=ModelError(message))) as triton:
        (update,) = request(triton)
    assert (update.error, status_of(update)) == (message, status)


def test_error_after_a_token_is_not_a_rejection() -> None:
    with FakeTriton(answer=answers(response(65), error=ModelError("out of memory"))) as triton:
        updates = request(triton)
    assert (ids_of(updates), status_of(updates[-1])) == ([65], 500)


@pytest.mark.parametrize("responses", [(), (response(65),)], ids=["no token", "a token"])
def test_lost_connection_can_be_retried(responses: tuple[Outputs, ...]) -> None:
    with FakeTriton(answer=answers(*responses, error=ConnectionLost())) as triton:
        updates = request(triton)
        address = triton.endpoint.grpc
    assert (len(ids_of(updates)), status_of(updates[-1])) == (len(responses), 503)
    assert address not in (updates[-1].error or "")


def test_invalid_response_is_a_server_error() -> None:
    with FakeTriton(answer=answers({"output_ids": [65]})) as triton:
        (update,) = request(triton)
    assert status_of(update) == 500
    assert update.error == "the server's response is invalid: 'sequence_length'"


def forever(request: Request) -> Iterator[Outputs]:
    while True:
        yield tokens(1)


def test_cancelled_request_is_stopped() -> None:
    """A cancelled gRPC call could crash Triton."""

    async def test(backend: Backend) -> None:
        request_id = backend.send(max_new_tokens=1_000_000)
        await wait_until(lambda: backend.updates)
        backend.cancel(request_id)
        num_updates = len(backend.updates)
        await wait_until(lambda: not backend.num_calls)
        assert len(backend.updates) == num_updates
        backend.cancel(request_id)

    with FakeTriton(answer=forever, itl_s=0.005) as triton:
        assert not any(each.error for each in run(triton.endpoint, test))
        (request,) = triton.requests
        assert (triton.stopped, triton.cancelled.is_set()) == ({request.id}, False)


def test_request_that_waits_for_its_first_token_can_be_stopped() -> None:
    async def test(backend: Backend) -> None:
        request_id = backend.send()
        await wait_until(lambda: triton.requests)
        backend.cancel(request_id)
        await wait_until(lambda: not backend.num_calls)

    with FakeTriton(sticks_at=1) as triton:
        assert run(triton.endpoint, test) == []
        assert not triton.cancelled.is_set()


def test_request_that_is_not_sent_yet_is_not_sent() -> None:
    async def test(backend: Backend) -> None:
        backend.cancel(backend.send())
        await wait_until(lambda: not backend.num_calls)
        backend.send()
        await wait_until(lambda: backend.num_ended)

    with FakeTriton() as triton:
        assert ids_of(run(triton.endpoint, test)) == [0, 0, 0]
        assert (len(triton.requests), triton.stopped) == (1, set())


@pytest.mark.parametrize("cause", ["no input named stop", "no end within the time limit"])
def test_call_is_cancelled_if_the_request_cannot_be_stopped(cause: str) -> None:
    async def test(backend: Backend) -> None:
        request_id = backend.send(max_new_tokens=1_000_000)
        await wait_until(lambda: backend.updates)
        backend.cancel(request_id)
        await wait_until(triton.cancelled.is_set)

    inputs = tuple(each for each in list_inputs("tensorrt_llm") if each != "stop")
    with FakeTriton(answer=forever, itl_s=0.005, ignores_stops=True) as triton:
        if cause == "no input named stop":
            triton.input_names = inputs
        updates = run(triton.endpoint, test, stop_timeout_s=0.1)
        assert not any(each.error for each in updates)
        assert bool(triton.stopped) == (cause != "no input named stop")


def test_closed_backend_cancels_its_requests() -> None:
    async def test(backend: Backend) -> None:
        backend.send()
        await wait_until(lambda: triton.requests)

    with FakeTriton(sticks_at=1) as triton:
        assert run(triton.endpoint, test) == []
        assert triton.cancelled.wait(20)


def test_model_that_is_not_ready_receives_no_requests() -> None:
    async def test(backend: Backend) -> None:
        triton.unloaded.add("tensorrt_llm")
        await wait_until(lambda: not backend.is_open)
        with pytest.raises(ApiError) as raised:
            backend.send()
        assert raised.value.status == 503
        triton.unloaded.discard("tensorrt_llm")
        await wait_until(lambda: backend.is_open)
        backend.send()
        await wait_until(lambda: backend.num_ended)

    with FakeTriton() as triton:
        assert ids_of(run(triton.endpoint, test)) == [0, 0, 0]


def test_restarted_server_receives_requests_again() -> None:
    http, grpc = free_ports(2)
    triton = FakeTriton()
    triton.start(http, grpc)

    async def test(backend: Backend) -> None:
        await asyncio.to_thread(triton.stop)
        await wait_until(lambda: not backend.is_open)
        await asyncio.to_thread(other.start, http, grpc)
        await wait_until(lambda: backend.is_open)
        backend.send()
        await wait_until(lambda: backend.num_ended)

    other = FakeTriton()
    try:
        assert ids_of(run(triton.endpoint, test)) == [0, 0, 0]
    finally:
        other.stop()


def test_lost_connection_closes_the_backend_immediately() -> None:
    """Otherwise, other requests would be sent to the same server."""

    async def test(backend: Backend) -> None:
        backend.send()
        await wait_until(lambda: backend.updates)
        assert not backend.is_open

    with FakeTriton(answer=answers(error=ConnectionLost())) as triton:
        run(triton.endpoint, test)


def test_requests_are_sent_over_tls(tmp_path: Path) -> None:
    files = certify(tmp_path, "server", "-addext", "subjectAltName=IP:127.0.0.1")
    with FakeTriton(certificate=files, answer=answers(response(65))) as triton:
        endpoint = Endpoint(triton.endpoint.grpc, tls=Tls(str(files[0])))

        async def test(backend: Backend) -> None:
            backend.send()
            await wait_until(lambda: backend.num_ended)

        assert ids_of(run(endpoint, test)) == [65]
