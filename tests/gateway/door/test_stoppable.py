from __future__ import annotations

import json

import pytest

from trtllm_serve_cli.gateway.door.stoppable import make_stoppable


def test_request_and_its_stop_request_have_the_same_id() -> None:
    stoppable = make_stoppable(b' {"text_input": "a", "max_tokens": 2}')
    assert stoppable is not None
    request_id = stoppable.request_id.decode()
    fields = {"id": request_id, "text_input": "a", "max_tokens": 2}
    assert json.loads(stoppable.body) == fields
    assert json.loads(stoppable.stop) == {**fields, "stop": True}
    assert make_stoppable(b'{"a": 1}') != make_stoppable(b'{"a": 1}')


@pytest.mark.parametrize("body", [b"{}", b"[1]", b'{"id": "1", "a": 1}', b'{"stop": true}'])
def test_other_bodies_are_not_changed(body: bytes) -> None:
    assert make_stoppable(body) is None


def test_response_does_not_contain_the_id() -> None:
    stoppable = make_stoppable(b'{"text_input": "a"}')
    assert stoppable is not None
    response = b'{"batch_index":0,"id":"%b","text_output":"b"}' % stoppable.request_id
    assert stoppable.restore(response) == b'{"batch_index":0,"text_output":"b"}'
    error = b'{"error":"[request id: %b] expected 2 inputs"}' % stoppable.request_id
    assert stoppable.restore(error) == b'{"error":"[request id: <id_unknown>] expected 2 inputs"}'
