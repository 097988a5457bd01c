"""Bodies of requests with an id, and of the requests that stop them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_serve_cli.gateway.door.inference_body import InferenceBody
from trtllm_serve_cli.gateway.door.stoppable import StoppableRequest, make_stoppable

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}
STOP = {"name": "stop", "datatype": "BOOL", "shape": [2, 1], "data": [True, True]}


def make(body: bytes, *, is_generate: bool = True, max_batch_size: int = 4) -> StoppableRequest:
    made = make_stoppable(
        InferenceBody(body), is_generate=is_generate, max_batch_size=max_batch_size
    )
    assert made is not None
    return made


def read_stop(stoppable: StoppableRequest) -> Any:
    assert stoppable.stop is not None
    return json.loads(stoppable.stop.data)


def test_request_and_its_stop_request_have_the_same_id() -> None:
    stoppable = make(b' {"text_input": "a", "max_tokens": 2}')
    request_id = stoppable.request_id
    fields = {"id": request_id, "text_input": "a", "max_tokens": 2}
    assert json.loads(stoppable.body.data) == fields
    assert read_stop(stoppable) == {**fields, "stop": True}
    assert make(b'{"a": 1}') != make(b'{"a": 1}')


@pytest.mark.parametrize(
    ("max_batch_size", "stop"), [(2, STOP), (0, {**STOP, "shape": [1], "data": [True]})]
)
def test_stop_is_a_tensor_of_infer(max_batch_size: int, stop: dict[str, Any]) -> None:
    body = {"inputs": [TEXT], "parameters": {"binary_data_output": True}}
    made = make(json.dumps(body).encode(), is_generate=False, max_batch_size=max_batch_size)
    request_id = made.request_id
    assert json.loads(made.body.data) == {"id": request_id, **body}
    assert read_stop(made) == {"id": request_id, **body, "inputs": [stop, TEXT]}


def test_binary_tensors_follow_both_requests() -> None:
    head = json.dumps({"inputs": [{"name": "a", "shape": [1], "datatype": "INT8"}]}).encode()
    body = InferenceBody.of(head + b"\x00", str(len(head)))
    made = make_stoppable(body, is_generate=False, max_batch_size=0)
    assert made is not None and made.stop is not None
    for each in (made.body, made.stop):
        (size,) = each.headers.values()
        assert json.loads(each.data[: int(size)])["id"] == made.request_id
        assert each.data[int(size) :] == b"\x00"


@pytest.mark.parametrize(
    "body", [b"{}", b"[1]", b'{"stop": true}', b'{"id": 1}', b'{"id": ""}', b'{"stream": true}']
)
def test_other_bodies_are_not_changed(body: bytes) -> None:
    made = make_stoppable(InferenceBody(body), is_generate=True, max_batch_size=1)
    assert made is None


@pytest.mark.parametrize(
    "inputs",
    [[], {}, [1], [{**TEXT, "name": "stop"}], [{"name": "a"}]]
    + [[{**TEXT, "shape": shape}] for shape in (["2"], [3], [10**15], [0], [-1])],
)
def test_other_inputs_are_not_changed(inputs: Any) -> None:
    body = InferenceBody(json.dumps({"inputs": inputs}).encode())
    assert make_stoppable(body, is_generate=False, max_batch_size=2) is None


def test_id_of_the_client_remains() -> None:
    body = b'{"text_input": "a", "id": "1\\u00e9", "stream":false}'
    stoppable = make(body)
    assert (stoppable.request_id, stoppable.body.data) == ("1é", body)
    assert read_stop(stoppable) == {**json.loads(body), "stop": True}
    response = InferenceBody(b'{"id":"1\xc3\xa9","text_output":"b"}')
    assert stoppable.restore(response) == response


def test_stream_with_an_id_is_stopped_by_triton() -> None:
    stoppable = make(b'{"text_input": "a", "id": "1", "stream": true}')
    assert (stoppable.request_id, stoppable.stop) == ("1", None)


def test_response_does_not_contain_the_id() -> None:
    stoppable = make(b'{"text_input": "a"}')
    request_id = stoppable.request_id.encode()
    response = b'{"batch_index":0,"id":"%b","text_output":"b"}' % request_id
    restored = stoppable.restore(InferenceBody(response, b"\x00"))
    assert restored == InferenceBody(b'{"batch_index":0,"text_output":"b"}', b"\x00")
    error = b'{"error":"[request id: %b] expected 2 inputs"}' % request_id
    assert stoppable.restore(InferenceBody(error)).data == (
        b'{"error":"[request id: <id_unknown>] expected 2 inputs"}'
    )
