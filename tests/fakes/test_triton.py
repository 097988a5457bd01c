"""The fake Triton, used by upstream's clients and as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from tests.fakes.triton.server import FakeTriton
from tests.ports import free_ports
from tests.samples.launch_plans import FAKE_TRITON
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.server import probe_token
from trtllm_serve_cli.errors import TllmError

UNKNOWN = "Request for unknown model: 'nope' is not found"


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(is_decoupled=False) as fake:
        yield fake


@pytest.fixture
def client(triton: FakeTriton) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(triton.endpoint.grpc) as client:
        yield client


def _send(triton: FakeTriton, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request, GET without a body, and return the status and JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{triton.endpoint.http}{path}", data) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    return status, json.loads(content) if content else None


def test_both_interfaces_describe_the_server_and_its_models_alike(
    triton: FakeTriton, client: InferenceServerClient
) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.get_server_metadata(as_json=True) == _send(triton, "/v2")[1]
    model = "tensorrt_llm"
    assert client.get_model_metadata(model, as_json=True) == _send(triton, f"/v2/models/{model}")[1]
    config = client.get_model_config(model, as_json=True)["config"]
    assert (config["name"], config["parameters"]) == (
        model,
        _send(triton, f"/v2/models/{model}/config")[1]["parameters"],
    )


def test_unloaded_models_are_unknown_until_they_are_loaded(
    triton: FakeTriton, client: InferenceServerClient
) -> None:
    client.unload_model("ensemble")
    assert not client.is_model_ready("ensemble")
    assert _send(triton, "/v2/models/ensemble/ready") == (400, None)
    index = {each["name"]: each["state"] for each in _send(triton, "/v2/repository/index", {})[1]}
    assert (index["ensemble"], index["tensorrt_llm"]) == ("UNAVAILABLE", "READY")
    assert _send(triton, "/v2/repository/models/ensemble/load", {}) == (200, None)
    assert client.is_model_ready("ensemble")
    _send(triton, "/v2/repository/models/ensemble/unload", {})
    client.load_model("ensemble")
    assert len(client.get_model_repository_index().models) == 4
    assert _send(triton, "/v2/models/ensemble/ready") == (200, None)


def test_unknown_models_are_refused(triton: FakeTriton, client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*" + UNKNOWN):
        client.get_model_config("nope")
    assert _send(triton, "/v2/models/nope/config") == (404, {"error": UNKNOWN})


def test_an_inference_has_the_same_outputs_over_both_interfaces(
    triton: FakeTriton, client: InferenceServerClient
) -> None:
    values = {"input_ids": [[5, 6]], "request_output_len": [[3]]}
    tensors = []
    for name, value in values.items():
        tensors.append(InferInput(name, np.shape(value), "INT32"))
        tensors[-1].set_data_from_numpy(np.array(value, np.int32))
    result = client.infer("tensorrt_llm", tensors)
    inputs = [
        {"name": name, "datatype": "INT32", "shape": np.shape(value), "data": value}
        for name, value in values.items()
    ]
    status, answer = _send(triton, "/v2/models/tensorrt_llm/infer", {"inputs": inputs})
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    assert (status, outputs) == (200, {"output_ids": [0, 0, 0], "sequence_length": [3]})
    assert result.as_numpy("output_ids").ravel().tolist() == [0, 0, 0]
    assert triton.received == [{"input_ids": [5, 6], "request_output_len": 3}] * 2


def test_decoupled_models_need_a_stream(triton: FakeTriton, client: InferenceServerClient) -> None:
    triton.is_decoupled = True
    with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
        client.infer("tensorrt_llm", [])


def test_generate_gives_one_response(triton: FakeTriton) -> None:
    path = "/v2/models/ensemble/generate"
    assert _send(triton, path, {"text_input": "echo:hi"})[1]["text_output"] == "hi"
    status, answer = _send(triton, path, {"text_input": "go"})
    assert (status, "exactly 1 response" in answer["error"]) == (400, True)
    assert _send(triton, path, {"text_input": "refuse"})[0] == 400


def test_a_process_serves_both_interfaces(tmp_path: Any) -> None:
    http, grpc = free_ports(2)
    command = (sys.executable, FAKE_TRITON, str(http), "--grpc-port", str(grpc))
    endpoint = Endpoint(grpc=f"127.0.0.1:{grpc}", http=f"127.0.0.1:{http}")

    def answers() -> bool:
        try:
            probe_token(endpoint, "m", 10, "grpc")
            return bool(probe_token(endpoint, "m", 10, "http").num_output_tokens)
        except TllmError:
            return False

    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"server %d\n" % process.pid
        wait_until(answers)
        process.terminate()
    assert process.returncode == 0


def test_unknown_behaviours_of_a_process_are_refused() -> None:
    command = (sys.executable, FAKE_TRITON, "1", "crash", "dance")
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr.splitlines()[-1]) == (
        2,
        "python -m tests.fakes.triton: error: unknown behaviour: dance",
    )
