"""Upstream's client programs with `decoupled_mode=false`: one response for each request.

KV cache reuse is off: `end_to_end_test.py` compares two responses to the same prompt, and cached
blocks change the rounding. The text models call `preprocessing` here, which they otherwise do only
for a custom `preprocessing` model.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import Tllm
from tests.e2e.core import count_cancelled, gauge
from tests.e2e.upstream import PROMPT, Inputs, as_tensors, core_inputs, names, stop_inputs, stream
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint

PARAMETERS = (
    "decoupled_mode=false", "enable_kv_cache_reuse=false", "max_queue_size=4",
    "ask_preprocessing=true",
)  # fmt: skip
QUESTION = "The capital of France is"
# Runs longer than everything else in a test.
LONG = 6000
NO_WORDS = np.array([[""]], object)


@pytest.fixture(scope="module")
def served_whole(
    imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tllm]:
    """Serve the demo model with one response for each request."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("whole") / "home")
    tllm.done("import", "-m", "demo", "-s", source, *(f"--param={each}" for each in PARAMETERS))
    started = tllm.start("--openai", f"--openai-port={free_ports(1)[0]}")
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def whole(served_whole: Tllm) -> Endpoint:
    return served_whole.endpoint()


@pytest.fixture(scope="module")
def gateway(served_whole: Tllm) -> str:
    """Return the address of the gateway, without the scheme."""
    return str(served_whole.status()["openai"]).removeprefix("http://")


def infer(endpoint: Endpoint, model: str, interface: str, inputs: Inputs) -> Any:
    """Send one unary request, like `end_to_end_test.py`."""
    if interface == "grpc":
        with grpcclient.InferenceServerClient(endpoint.grpc) as client:
            return client.infer(model, as_tensors(inputs), request_id="0")
    with httpclient.InferenceServerClient(endpoint.http) as client:
        return client.infer(model, as_tensors(inputs, httpclient.InferInput), request_id="0")


def num_preprocessed(endpoint: Endpoint) -> int:
    with httpclient.InferenceServerClient(endpoint.http) as client:
        (statistics,) = client.get_inference_statistics("preprocessing")["model_stats"]
    return int(statistics["inference_stats"]["success"]["count"])


BOTH = pytest.mark.parametrize("interface", ["grpc", "http"])


def test_text_model_calls_preprocessing_if_configured(whole: Endpoint) -> None:
    before = num_preprocessed(whole)
    inputs = {
        "text_input": np.array([[QUESTION]], object),
        "max_tokens": np.array([[2]], np.int32),
    }
    assert infer(whole, "ensemble", "http", inputs).as_numpy("text_output").size == 1
    assert num_preprocessed(whole) == before + 1


@BOTH
def test_three_models_called_in_turn_match_the_text_models(whole: Endpoint, interface: str) -> None:
    """The steps of `end_to_end_test.py --test-bls`; empty words are ignored."""
    query = {
        "QUERY": np.array([[QUESTION]], object),
        "REQUEST_OUTPUT_LEN": np.array([[12]], np.int32),
    }
    words = {"BAD_WORDS_DICT": NO_WORDS, "STOP_WORDS_DICT": NO_WORDS}
    before = infer(whole, "preprocessing", interface, query | words)
    renamed = {
        "INPUT_ID": "input_ids",
        "DECODER_INPUT_ID": "decoder_input_ids",
        "REQUEST_INPUT_LEN": "input_lengths",
        "REQUEST_OUTPUT_LEN": "request_output_len",
        "OUT_END_ID": "end_id",
        "OUT_PAD_ID": "pad_id",
    }
    core = {name: before.as_numpy(output) for output, name in renamed.items()}
    generated = infer(whole, "tensorrt_llm", interface, core)
    tokens = {
        "TOKENS_BATCH": generated.as_numpy("output_ids"),
        "SEQUENCE_LENGTH": generated.as_numpy("sequence_length"),
    }
    by_hand = infer(whole, "postprocessing", interface, tokens).as_numpy("OUTPUT").tolist()
    text = {"text_input": query["QUERY"], "max_tokens": query["REQUEST_OUTPUT_LEN"]}
    text |= {"bad_words": NO_WORDS, "stop_words": NO_WORDS}
    answers = [
        infer(whole, model, interface, text).as_numpy("text_output").tolist()
        for model in ("ensemble", "tensorrt_llm_bls")
    ]
    assert by_hand[0].decode().startswith(QUESTION) and answers == [by_hand, by_hand]


@BOTH
def test_the_prompt_is_part_of_the_output(whole: Endpoint, interface: str) -> None:
    """`--check-output` and the benchmark's count of output tokens rely on it."""
    answer = infer(whole, "tensorrt_llm", interface, core_inputs(PROMPT, 16, streaming=False))
    ids = answer.as_numpy("output_ids")
    length = int(answer.as_numpy("sequence_length")[0, 0])
    assert (ids.shape, length, ids[0, 0, : len(PROMPT)].tolist()) == ((1, 1, 28), 28, PROMPT)


def test_perf_metrics_are_returned_with_other_outputs(whole: Endpoint) -> None:
    counts = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")
    drafts = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
    times = ("arrival", "first_scheduled", "first_token", "last_token")
    requested = ["output_ids", *counts, *(f"{each}_time_ns" for each in times), *drafts]
    inputs = core_inputs(PROMPT, 4, streaming=False) | {"return_perf_metrics": np.array([[True]])}
    outputs = [grpcclient.InferRequestedOutput(name) for name in requested]
    with grpcclient.InferenceServerClient(whole.grpc) as client:
        answer = client.infer("tensorrt_llm", as_tensors(inputs), outputs=outputs)
    reported_ns = [int(answer.as_numpy(f"{each}_time_ns")[0][0]) for each in times]
    assert (
        names(answer) == set(requested)
        and reported_ns == sorted(reported_ns)
        and reported_ns[0] > 0
    )


def test_stopped_request_and_its_stop_both_get_a_response(whole: Endpoint) -> None:
    """`--stop-after-ms` waits for two responses; that of the stop request has no ids."""
    arrived: queue.Queue[Any] = queue.Queue()
    inputs = core_inputs(PROMPT, LONG, streaming=False)
    del inputs["end_id"]
    wait_until(lambda: gauge(whole, "active") == 0)
    with grpcclient.InferenceServerClient(whole.grpc) as client:
        for each in (inputs, stop_inputs()):
            client.async_infer(
                "tensorrt_llm",
                as_tensors(each),
                lambda result, error: arrived.put(error or result),
                request_id="1",
            )
            if each is inputs:
                wait_until(lambda: gauge(whole, "active") == 1)
        shapes = [
            None if ids is None else ids.shape[2] < len(PROMPT) + LONG
            for ids in (arrived.get(timeout=60).as_numpy("output_ids") for _ in range(2))
        ]
    assert sorted(shapes, key=str) == [None, True]


def test_a_cancelled_call_ends_with_cancelled(whole: Endpoint) -> None:
    arrived: queue.Queue[Any] = queue.Queue()
    inputs = core_inputs(PROMPT, LONG, streaming=False)
    del inputs["end_id"]
    wait_until(lambda: gauge(whole, "active") == 0)
    with grpcclient.InferenceServerClient(whole.grpc) as client:
        call = client.async_infer(
            "tensorrt_llm",
            as_tensors(inputs),
            lambda result, error: arrived.put(error),
            request_id="1",
        )
        wait_until(lambda: gauge(whole, "active") == 1)
        call.cancel()
        assert arrived.get(timeout=60).status() == "StatusCode.CANCELLED"


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_client_that_leaves_the_gateway_ends_its_request(
    whole: Endpoint, gateway: str, model: str
) -> None:
    """Triton does not report the client to the model, so the gateway stops the request."""
    inputs = {
        "ensemble": {
            "text_input": np.array([["a"]], object),
            "max_tokens": np.array([[LONG]], np.int32),
            "end_id": np.array([[-1]], np.int32),
        },
        "tensorrt_llm": core_inputs(PROMPT, LONG, streaming=False)
        | {"end_id": np.array([[-1]], np.int32)},
    }[model]
    tensors = as_tensors(inputs, httpclient.InferInput)
    body, size = httpclient.InferenceServerClient.generate_request_body(tensors)
    num_before = count_cancelled(whole)
    with contextlib.closing(http.client.HTTPConnection(gateway)) as connection:
        headers = {"Inference-Header-Content-Length": str(size)}
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        wait_until(lambda: gauge(whole, "active") == 1)
    wait_until(lambda: count_cancelled(whole) > num_before)


def test_gateway_returns_the_response_of_triton(whole: Endpoint, gateway: str) -> None:
    tensors = as_tensors(core_inputs(PROMPT, 2, streaming=False), httpclient.InferInput)
    answers = []
    for address in (whole.http, gateway):
        with httpclient.InferenceServerClient(address) as client:
            answers.append(client.infer("tensorrt_llm", tensors))
    assert answers[0].get_response() == answers[1].get_response()
    assert len({answer.as_numpy("output_ids").tobytes() for answer in answers}) == 1


def test_streaming_is_refused(whole: Endpoint) -> None:
    (error,) = stream(whole, "tensorrt_llm", core_inputs(PROMPT, 4, streaming=True))
    assert "streaming requires a decoupled model" in error.message()


@BOTH
def test_a_full_queue_refuses(whole: Endpoint, interface: str) -> None:
    """`test_max_queue_size.py` looks for a sentence of this message over each interface."""
    refusal = "Exceeds maximum queue size. Maximum queue size of 4 has been reached"
    with full_queue(whole), pytest.raises(InferenceServerException, match=refusal):
        infer(whole, "tensorrt_llm", interface, core_inputs(PROMPT, 2, streaming=False))


def test_a_full_queue_refuses_over_a_stream(whole: Endpoint) -> None:
    with full_queue(whole):
        (error,) = stream(whole, "tensorrt_llm", core_inputs(PROMPT, 2, streaming=False))
    assert "Exceeds maximum queue size" in error.message()


@contextlib.contextmanager
def full_queue(endpoint: Endpoint) -> Iterator[None]:
    """Occupy all slots and the engine's queue, and cancel these requests at the end."""
    inputs = core_inputs(PROMPT, LONG, streaming=False)
    del inputs["end_id"]
    arrived: queue.Queue[Any] = queue.Queue()
    wait_until(lambda: gauge(endpoint, "active") == 0)
    with grpcclient.InferenceServerClient(endpoint.grpc) as client, contextlib.ExitStack() as sent:

        def is_refused() -> bool:
            call = client.async_infer(
                "tensorrt_llm", as_tensors(inputs), lambda result, error: arrived.put(error)
            )
            sent.callback(call.cancel)
            # The engine refuses. Triton's own queue is as long, and refuses with other words.
            return any("Maximum queue size of" in str(each) for each in list(arrived.queue))

        wait_until(is_refused)
        yield
    wait_until(lambda: gauge(endpoint, "active") == 0)
