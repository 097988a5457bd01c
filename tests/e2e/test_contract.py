"""Requests of upstream's clients get the responses of upstream's model repository."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.e2e.conftest import Tllm
from tests.e2e.core import infer, tokens
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.repository.model.contract import load_contracts

TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "demo")


def post(endpoint: Endpoint, path: str, body: Any) -> tuple[int, str]:
    """Return the status and body of the response, also of an error."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{endpoint.http}/v2/{path}", data=data)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_generate_answers_upstreams_curl(endpoint: Endpoint, model: str) -> None:
    body = {
        "text_input": "What is ML?",
        "max_tokens": 50,
        "bad_words": "",
        "stop_words": "",
        "pad_id": 2,
        "end_id": 2,
    }
    status, answer = post(endpoint, f"models/{model}/generate", body)
    assert status == 200, answer
    # Like upstream's backend, the response includes the prompt by default.
    assert json.loads(answer)["text_output"].removeprefix("What is ML?").strip()


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_generate_stream_sends_a_piece_per_token(endpoint: Endpoint, model: str) -> None:
    body = {"text_input": "What is ML?", "max_tokens": 8, "stream": True}

    def count_pieces() -> int:
        status, answer = post(endpoint, f"models/{model}/generate_stream", body)
        assert status == 200, answer
        return answer.count("data: {")

    # On a busy machine, a piece can have the text of several tokens.
    wait_until(lambda: count_pieces() == 8)


def test_streamed_pieces_concatenate_to_the_whole_text(endpoint: Endpoint) -> None:
    body = {"text_input": "One, two,", "max_tokens": 24, "exclude_input_in_output": True}
    whole = json.loads(post(endpoint, "models/ensemble/generate", body)[1])["text_output"]
    _, answer = post(endpoint, "models/ensemble/generate_stream", {**body, "stream": True})
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == whole


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_loaded_models_have_upstreams_tensors(endpoint: Endpoint, model: str) -> None:
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        config = client.get_model_config(model).config
    contract = load_contracts()[model]
    assert [each.name for each in config.input] == [each.name for each in contract.inputs]
    assert [each.name for each in config.output] == [each.name for each in contract.outputs]


def test_output_includes_the_input_on_request(endpoint: Endpoint) -> None:
    prompt = [504, 2115, 476]
    answer = tokens(infer(endpoint, prompt, 3, exclude_input_in_output=False))
    assert answer[:3] == prompt and len(answer) == 6


def test_responses_of_a_batch_have_a_row_index(endpoint: Endpoint) -> None:
    inputs = [
        _input("text_input", "BYTES", [["Red, green,"], ["A B"]]),
        _input("max_tokens", "INT32", [[4], [6]]),
        _input("return_num_output_tokens", "BOOL", [[True], [True]]),
    ]
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        arrived: list[Any] = []
        client.start_stream(lambda result, error: arrived.append(error or result))
        client.async_stream_infer("tensorrt_llm_bls", inputs)
        client.stop_stream()
    counts = {
        int(each.as_numpy("batch_index")[0, 0]): int(each.as_numpy("num_output_tokens")[0, 0])
        for each in arrived
        if each.get_response().outputs
    }
    assert counts == {0: 4, 1: 6}


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_response_has_only_the_requested_outputs(endpoint: Endpoint, model: str) -> None:
    """Triton 2.51 on Python 3.12 crashes if a response has an output that was not requested."""
    inputs = [
        _input("text_input", "BYTES", [["Red, green,"]]),
        _input("max_tokens", "INT32", [[4]]),
        _input("stream", "BOOL", [[True]]),
    ]
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        arrived: list[Any] = []
        client.start_stream(lambda result, error: arrived.append(error or result))
        outputs = [grpcclient.InferRequestedOutput("text_output")]
        client.async_stream_infer(model, inputs, outputs=outputs)
        client.stop_stream()
    names = [[output.name for output in each.get_response().outputs] for each in arrived]
    # A busy server can send several tokens in one response.
    assert {tuple(each) for each in names if each} == {("text_output",)}


@pytest.mark.parametrize("path", ["repository/index", "systemsharedmemory/region/x/register"])
def test_restricted_apis_refuse_requests_without_a_token(endpoint: Endpoint, path: str) -> None:
    status, answer = post(endpoint, path, {})
    assert status == 403 and "restricted" in answer


def test_restricted_apis_accept_the_token_of_the_server(served: Tllm, endpoint: Endpoint) -> None:
    port = endpoint.http.rpartition(":")[2]
    token = (served.home / "servers" / port / "restricted-api-token").read_text().strip()
    request = urllib.request.Request(
        f"http://{endpoint.http}/v2/repository/index", data=b"{}", headers={"tllm-token": token}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert {each["name"] for each in json.load(answer)} >= {"demo", "ensemble"}


BAD_REQUESTS = {
    "an empty prompt": ({"text_input": "", "max_tokens": 5}, "text_input (QUERY) is empty"),
    "negative max tokens": ({"text_input": "x", "max_tokens": -5}, "max_tokens) is -5"),
    "no max tokens": ({"text_input": "x", "max_tokens": 0}, "request at least 1"),
    "huge max tokens": ({"text_input": "x", "max_tokens": 99999}, "request at most 8191"),
    "a prompt beyond the context": (
        {"text_input": "word " * 9000, "max_tokens": 5},
        "shorten the prompt",
    ),
    "a bad temperature": (
        {"text_input": "x", "max_tokens": 5, "temperature": -1.0},
        "temperature is -1",
    ),
    "a bad top_p": ({"text_input": "x", "max_tokens": 5, "top_p": 1.5}, "runtime_top_p is 1.5"),
    "too many beams": ({"text_input": "x", "max_tokens": 5, "beam_width": 99}, "beam_width is 99"),
    "a tensor that nothing serves": (
        {"text_input": "x", "max_tokens": 5, "image_url_input": "file:///x"},
        "image_url_input (images and video) is not supported",
    ),
    "a stop of an unknown request": (
        {"id": "unknown", "text_input": "", "max_tokens": 1, "stop": True},
        "no running request has the id 'unknown'",
    ),
    "a missing tensor": ({"text_input": "x"}, "max_tokens"),
    "a wrong type": ({"text_input": "x", "max_tokens": "many"}, "Unable to parse"),
}


@pytest.mark.parametrize(("body", "sentence"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_bad_request_is_rejected_with_the_reason(
    endpoint: Endpoint, body: dict[str, Any], sentence: str
) -> None:
    status, answer = post(endpoint, "models/tensorrt_llm_bls/generate", body)
    assert status >= 400
    assert sentence in json.loads(answer)["error"]


def test_invalid_utf8_is_refused(endpoint: Endpoint) -> None:
    inputs = [_input("text_input", "BYTES", [[b"\xff\xfe"]]), _input("max_tokens", "INT32", [[3]])]
    arrived: list[Any] = []
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(lambda result, error: arrived.append(error))
        client.async_stream_infer("tensorrt_llm_bls", inputs)
        client.stop_stream()
    assert "not valid UTF-8 at byte 0" in str(arrived[0])


def test_invalid_token_ids_are_refused(endpoint: Endpoint) -> None:
    with pytest.raises(Exception, match="input_ids contains -1"):
        infer(endpoint, [1, -1], 3)


def _input(name: str, data_type: str, rows: list[list[Any]]) -> grpcclient.InferInput:
    types = {"BYTES": object, "INT32": np.int32, "BOOL": np.bool_}
    array = np.array(rows, dtype=types[data_type])
    tensor_input = grpcclient.InferInput(name, list(array.shape), data_type)
    tensor_input.set_data_from_numpy(array)
    return tensor_input
