"""Requests over real sockets: text, errors and cancellation, over both interfaces."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from tests.fakes.triton.answers import PERF
from tests.fakes.triton.server import FakeTriton
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream, stream_in_thread
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest, Interface, RawTensor
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed, TimedOut

both = pytest.mark.parametrize("interface", ["grpc", "http"])


@both
def test_streams_the_text_in_pieces(triton: FakeTriton, interface: Interface) -> None:
    pieces = list(stream(triton.endpoint, "ensemble", GenerateRequest("go"), interface))
    assert [piece.text for piece in pieces] == ["Machine", " ", "learning é"]
    assert not triton.cancelled.is_set()


def test_pieces_are_the_new_text_of_a_model_that_repeats_the_text(triton: FakeTriton) -> None:
    info = replace(fetch_model_config(triton.endpoint, "ensemble"), accumulates_tokens=True)
    pieces = stream(triton.endpoint, "ensemble", GenerateRequest("accumulate"), info=info)
    assert [piece.text for piece in pieces] == ["Ma", "chine", " learning"]


@both
def test_completion_has_token_counts_and_times(triton: FakeTriton, interface: Interface) -> None:
    done = generate(triton.endpoint, "ensemble", GenerateRequest("go"), interface)
    assert (done.texts, done.num_input_tokens, done.num_output_tokens) == (
        ("Machine learning é",),
        4,
        3,
    )
    assert done.ttft_s is not None and 0 < done.ttft_s <= done.latency_s


@both
def test_sends_every_tensor(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest(
        "go",
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        seed=2**64 - 1,
        stop_words=("é", ""),
        bad_words=("x",),
        guided_decoding_guide_type="regex",
        guided_decoding_guide="[a-zé]+",
        lora_task_id=2**64 - 1,
        return_log_probs=True,
        return_perf_metrics=True,
    )
    generate(triton.endpoint, "ensemble", request, interface)
    assert triton.received == [
        {
            "text_input": "go",
            "max_tokens": 5,
            "stream": True,
            "temperature": 0.5,
            "top_k": 3,
            "seed": 2**64 - 1,
            "stop_words": ["é", ""],
            "bad_words": ["x"],
            "guided_decoding_guide_type": "regex",
            "guided_decoding_guide": "[a-zé]+",
            "lora_task_id": 2**64 - 1,
            "return_log_probs": True,
            "return_perf_metrics": True,
            "exclude_input_in_output": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }
    ]


@both
def test_sends_lora_name_as_a_request_parameter(triton: FakeTriton, interface: Interface) -> None:
    generate(triton.endpoint, "m", GenerateRequest("go", lora_name="pirate"), interface)
    assert [each.parameters for each in triton.requests] == [{"lora_name": "pirate"}]


def test_sends_adapter_weights_over_grpc(triton: FakeTriton) -> None:
    weights, config = RawTensor((1, 1, 2), b"\0\x3c\0\x40"), RawTensor((1, 1, 3), b"\1\0\0\0" * 3)
    request = GenerateRequest("go", lora_task_id=7, lora_weights=weights, lora_config=config)
    generate(triton.endpoint, "m", request)
    sent = triton.received[0]
    assert sent["lora_weights"] == ("FP16", [1, 1, 2], weights.content)
    assert sent["lora_config"] == ("INT32", [1, 1, 3], config.content)


def test_rejects_adapter_weights_over_http(triton: FakeTriton) -> None:
    request = GenerateRequest("go", lora_weights=RawTensor((1, 1, 1), b"\0\0"))
    with pytest.raises(BadInput, match="lora_weights cannot be sent over HTTP"):
        generate(triton.endpoint, "m", request, "http")
    assert triton.requests == []


@both
def test_returns_perf_metrics_only_if_requested(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest("go", return_perf_metrics=True)
    assert generate(triton.endpoint, "m", request, interface).perf == PERF
    assert generate(triton.endpoint, "m", GenerateRequest("go"), interface).perf == {}


@both
@pytest.mark.parametrize(("prompt", "begins"), [("forever", "on on "), ("silent", "")])
def test_stopped_response_is_partial(
    triton: FakeTriton, interface: Interface, prompt: str, begins: str
) -> None:
    request = GenerateRequest(prompt, stop_after_ms=2000)
    done = generate(triton.endpoint, "m", request, interface, timeout_s=60)
    assert (done.was_stopped, done.text.startswith(begins)) == (True, True)
    assert 2 <= done.latency_s < 60


@both
def test_faster_response_is_not_stopped(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest("go", stop_after_ms=20_000)
    assert not generate(triton.endpoint, "m", request, interface).was_stopped


@both
def test_shorter_timeout_is_still_an_error(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest("forever", stop_after_ms=20_000)
    with pytest.raises(TimedOut):
        generate(triton.endpoint, "m", request, interface, timeout_s=0.2)


@both
def test_beams_of_one_response_become_sequences(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest("beams", stream=False, return_log_probs=True)
    done = generate(triton.endpoint, "ensemble", request, interface)
    assert (done.texts, done.num_output_tokens) == (("one", "two"), 4)
    assert (done.cum_log_probs, done.output_log_probs) == (
        (-1.0, -2.0),
        ((-0.25, -0.75), (-1.5, -0.5)),
    )


@both
def test_ignores_placeholders_of_outputs_not_requested(
    triton: FakeTriton, interface: Interface
) -> None:
    request = GenerateRequest("go", return_num_output_tokens=False)
    done = generate(triton.endpoint, "ensemble", request, interface)
    assert (done.cum_log_probs, done.num_output_tokens) == ((), None)


@both
def test_completion_without_responses_is_empty(triton: FakeTriton, interface: Interface) -> None:
    done = generate(triton.endpoint, "ensemble", GenerateRequest("nothing"), interface)
    assert (done.texts, done.ttft_s, done.tokens_per_s) == ((), None, None)


@both
@pytest.mark.parametrize(
    ("model", "prompt", "what", "why"),
    [
        (
            "nope",
            "go",
            "The server does not have a model named 'nope'.",
            "Request for unknown model",
        ),
        ("ensemble", "refuse", "The request to ensemble failed.", "at least 1"),
        ("ensemble", "break", "The request to ensemble failed.", "engine worker died"),
    ],
)
def test_reports_the_servers_error_message(
    triton: FakeTriton, interface: Interface, model: str, prompt: str, what: str, why: str
) -> None:
    with pytest.raises(RequestFailed) as raised:
        generate(triton.endpoint, model, GenerateRequest(prompt), interface)
    assert raised.value.what == what
    assert why in raised.value.why
    assert raised.value.next_step


def test_failed_call_is_not_cancelled(triton: FakeTriton) -> None:
    triton.ending_s = 0.2
    with pytest.raises(RequestFailed):
        generate(triton.endpoint, "ensemble", GenerateRequest("refuse"), "grpc")
    assert not triton.cancelled.is_set()


def test_failed_call_that_does_not_end_is_cancelled(triton: FakeTriton) -> None:
    triton.ending_s = 600.0
    with pytest.raises(RequestFailed, match="The request to ensemble failed"):
        generate(triton.endpoint, "ensemble", GenerateRequest("refuse"), "grpc")
    wait_until(triton.cancelled.is_set)


@both
def test_lost_connection_is_an_error(triton: FakeTriton, interface: Interface) -> None:
    with pytest.raises(RequestFailed, match="was lost before the response was complete"):
        generate(triton.endpoint, "ensemble", GenerateRequest("vanish"), interface)


@both
def test_closing_the_iterator_cancels_the_request(triton: FakeTriton, interface: Interface) -> None:
    request = GenerateRequest("forever")
    with closing(stream(triton.endpoint, "ensemble", request, interface)) as pieces:
        assert next(pieces).text == "on "
    assert triton.cancelled.wait(60)


@both
def test_cancellation_ends_a_waiting_request(triton: FakeTriton, interface: Interface) -> None:
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        request = GenerateRequest("silent")
        future = pool.submit(
            generate, triton.endpoint, "ensemble", request, interface, None, cancellation
        )
        wait_until(lambda: triton.requests)
        cancellation.set()
        with pytest.raises(RequestFailed, match="cancelled"):
            future.result(60)


@both
def test_cancelled_request_is_not_sent(triton: FakeTriton, interface: Interface) -> None:
    cancellation = Cancellation()
    cancellation.set()
    with pytest.raises(RequestFailed, match="cancelled"):
        generate(triton.endpoint, "ensemble", GenerateRequest("go"), interface, None, cancellation)
    assert triton.requests == []


@both
def test_stream_in_thread_yields_raises_and_cancels(
    triton: FakeTriton, interface: Interface
) -> None:
    pieces = stream_in_thread(triton.endpoint, "ensemble", GenerateRequest("go"), interface)
    assert [piece.text for piece in pieces] == ["Machine", " ", "learning é"]
    with pytest.raises(RequestFailed, match="The request to ensemble failed"):
        next(stream_in_thread(triton.endpoint, "ensemble", GenerateRequest("refuse"), interface))
    endless = stream_in_thread(triton.endpoint, "ensemble", GenerateRequest("forever"), interface)
    with closing(endless):
        next(endless)
    assert triton.cancelled.wait(60)


@both
@pytest.mark.parametrize("prompt", ["silent", "forever"])
def test_timeout_is_for_the_whole_response(
    triton: FakeTriton, interface: Interface, prompt: str
) -> None:
    with pytest.raises(RequestFailed, match=r"did not finish the request within 0.2 s") as raised:
        generate(triton.endpoint, "ensemble", GenerateRequest(prompt), interface, 0.2)
    assert "--timeout" in raised.value.next_step


@both
def test_reports_an_unreachable_address(interface: Interface) -> None:
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NoServer, match=f"No server responds at {address}") as raised:
            generate(Endpoint(address, address), "ensemble", GenerateRequest("go"), interface)
    assert "tllm start" in raised.value.next_step


@both
def test_rejects_values_outside_the_tensor_type(triton: FakeTriton, interface: Interface) -> None:
    with pytest.raises(BadInput, match="max_tokens cannot be 2147483648"):
        generate(triton.endpoint, "ensemble", GenerateRequest("go", 2**31), interface)
    assert triton.requests == []


def test_reports_http_to_a_grpc_port(triton: FakeTriton) -> None:
    endpoint = Endpoint(http=triton.endpoint.grpc)
    with pytest.raises(RequestFailed, match="is invalid"):
        generate(endpoint, "ensemble", GenerateRequest("go"), "http")
