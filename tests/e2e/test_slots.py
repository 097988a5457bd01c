"""Cancelled requests free their slot immediately."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge, infer, responses, tensor
from tests.e2e.upstream import as_tensors, text, text_inputs
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest

# Runs for a minute or more, much longer than a slot may take to be freed.
LONG = 6000
SOON_S = 20
NUM_CANCELLED = 100
PROMPT = [504, 2115, 476]


def is_idle(endpoint: Endpoint) -> bool:
    return gauge(endpoint, "active") == 0


def is_busy(endpoint: Endpoint) -> bool:
    return gauge(endpoint, "active") > 0


@pytest.mark.parametrize("model", ["demo", "ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_closing_a_stream_frees_the_slot(endpoint: Endpoint, model: str, interface: str) -> None:
    request = GenerateRequest("Once upon a time", max_tokens=LONG, min_tokens=LONG)
    pieces = stream(endpoint, model, request, interface)  # type: ignore[arg-type]
    next(pieces)
    wait_until(lambda: is_busy(endpoint))
    pieces.close()
    wait_until(lambda: is_idle(endpoint), SOON_S)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_cancelling_a_core_request_frees_the_slot(endpoint: Endpoint, is_streaming: bool) -> None:
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(lambda result, error: None)
        inputs = [
            tensor("input_ids", PROMPT),
            tensor("input_lengths", 3),
            tensor("request_output_len", LONG),
            tensor("streaming", is_streaming),
        ]
        client.async_stream_infer("tensorrt_llm", inputs)
        wait_until(lambda: is_busy(endpoint))
        client.stop_stream(cancel_requests=True)
    wait_until(lambda: is_idle(endpoint), SOON_S)


def test_many_cancelled_streams_do_not_delay_others(endpoint: Endpoint) -> None:
    inputs = as_tensors(text_inputs(["Once upon a time"], LONG, streaming=True))

    def start_and_cancel() -> None:
        with grpcclient.InferenceServerClient(endpoint.grpc) as client:
            for number in range(NUM_CANCELLED):
                client.start_stream(lambda result, error: None)
                client.async_stream_infer("ensemble", inputs)
                time.sleep(0.02 * (number % 2))
                client.stop_stream(cancel_requests=True)

    durations = []
    with ThreadPoolExecutor(4) as threads:
        cancelling = [threads.submit(start_and_cancel) for _ in range(4)]
        while not all(each.done() for each in cancelling):
            started = time.monotonic()
            assert infer(endpoint, PROMPT, 1)
            durations.append(time.monotonic() - started)
    for each in cancelling:
        each.result()
    assert durations and max(durations) < SOON_S
    wait_until(lambda: is_idle(endpoint), SOON_S)


def test_stop_with_the_same_id_ends_a_request(endpoint: Endpoint) -> None:
    with grpcclient.InferenceServerClient(endpoint.grpc) as running:
        answers = responses(running, PROMPT, LONG, request_id="to-stop", streaming=True)
        next(answers)
        with grpcclient.InferenceServerClient(endpoint.grpc) as stopping:
            assert list(responses(stopping, PROMPT, 1, request_id="to-stop", stop=True)) == []
        assert len(list(answers)) < LONG
    wait_until(lambda: is_idle(endpoint), SOON_S)


@pytest.mark.parametrize("model", ["demo", "ensemble", "tensorrt_llm_bls"])
def test_stop_sent_to_tensorrt_llm_ends_a_text_request(endpoint: Endpoint, model: str) -> None:
    inputs = text_inputs(["Once upon a time"], LONG, streaming=True)
    inputs |= {"min_tokens": np.array([[LONG]], np.int32)}
    arrived: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(lambda result, error: arrived.put(error or result))
        client.async_stream_infer(model, as_tensors(inputs), request_id="to-stop")
        wait_until(lambda: not arrived.empty())
        assert infer(endpoint, PROMPT, 1, request_id="to-stop", stop=True) == []
        client.stop_stream()
    assert not any(isinstance(each, Exception) for each in arrived.queue)
    assert text(list(arrived.queue)) and len(arrived.queue) < LONG
    wait_until(lambda: is_idle(endpoint), SOON_S)


def test_stop_sent_to_tensorrt_llm_ends_text_requests_over_http(endpoint: Endpoint) -> None:
    """Both requests have the same id, and one of them returns its text in a single response."""
    body = {"id": "to-stop", "text_input": "Continue", "max_tokens": LONG, "min_tokens": LONG}
    stop = {"id": "to-stop", "input_ids": [0], "input_lengths": 1, "request_output_len": 1}

    def post(path: str, body: dict[str, Any]) -> str:
        url = f"http://{endpoint.http}/v2/models/{path}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
            return str(response.read().decode())

    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(post, path, body)
            for path in ("ensemble/generate", "demo/generate_stream")
        ]
        wait_until(lambda: gauge(endpoint, "active") == 2)
        post("tensorrt_llm/generate", stop | {"stop": True})
        assert all("text_output" in each.result() for each in running)
    wait_until(lambda: is_idle(endpoint), SOON_S)


def test_stopping_an_unknown_id_is_an_error(endpoint: Endpoint) -> None:
    with (
        grpcclient.InferenceServerClient(endpoint.grpc) as client,
        pytest.raises(Exception, match="no running request has the id 'unknown'"),
    ):
        list(responses(client, PROMPT, 1, request_id="unknown", stop=True))


def test_many_closed_connections_free_all_slots(endpoint: Endpoint) -> None:
    host, _, port = endpoint.http.rpartition(":")
    body = json.dumps({"text_input": "Continue", "max_tokens": LONG, "stream": True, "end_id": -1})

    def leave() -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", "/v2/models/ensemble/generate_stream", body)
        connection.getresponse().read(20)
        connection.close()

    threads = [threading.Thread(target=leave) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: is_idle(endpoint))


def test_frequent_cancellation_checks_do_not_crash_triton(light_home: Any) -> None:
    """Triton 2.51 crashes if a response sender is queried after its final response."""
    tllm: Tllm = light_home()
    for model in ("tensorrt_llm", "demo"):
        config = tllm.home / "models" / "demo" / model / "config.pbtxt"
        period = 'key: "cancellation_check_period_ms" value: { string_value: '
        text = config.read_text()
        assert period in text
        config.write_text(text.replace(period + '"100"', period + '"1"'))
    assert tllm.start().returncode == 0
    endpoint = tllm.endpoint()

    def send_requests(number: int) -> int:
        request = GenerateRequest(f"Number {number}", max_tokens=2, stream=bool(number % 2))
        return sum(generate(endpoint, "demo", request).num_output_tokens or 0 for _ in range(8))

    with ThreadPoolExecutor(32) as threads:
        counts = list(threads.map(send_requests, range(32)))
    assert all(8 <= count <= 16 for count in counts)
    assert tllm.status()["restarts"] == 0
    tllm.done("stop")
    (log,) = (tllm.home / "servers").glob("*/server.log")
    assert "Signal (11)" not in log.read_text()
