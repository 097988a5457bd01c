from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_named_events
from tests.gateway.live_server import CALL, INFO, TEMPLATE, read_prompt
from trtllm_serve_cli.gateway.access.keys import add_key
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.runtime.engine import PromptFacts, SequenceUpdate

PATH = "/v1/messages"
THINKING = {"type": "adaptive", "display": "omitted"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "demo", "max_tokens": 100, "messages": messages, **fields}


def post(reply: str, path: str = PATH, **fields: Any) -> tuple[Any, FakeBackend]:
    backend = FakeBackend(generates(reply))
    with make_client(backend, info=INFO, template=ChatTemplate(TEMPLATE)) as client:
        response = client.post(path, json=body(**fields))
    assert response.status_code == 200, response.text
    return response, backend


def test_whole_message() -> None:
    response, _ = post("Hello!", path=f"{PATH}?beta=true")
    message = response.json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_not_input_tokens(stream: bool) -> None:
    def reply(request_id: int, fields: Any) -> Any:
        yield SequenceUpdate(request_id, 0, prompt=PromptFacts(4))
        yield from generates("Hi")(request_id, fields)

    with make_client(FakeBackend(reply), info=INFO, template=ChatTemplate(TEMPLATE)) as client:
        response = client.post(PATH, json=body(stream=stream))
    usage = (read_named_events(response.text)[-2] if stream else response.json())["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, 4)


def test_stream() -> None:
    response, _ = post("Hi", stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    start, ping, opened, *deltas, closed, delta, stop = read_named_events(response.text)
    message = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"] == {"input_tokens": 9, "output_tokens": 0}
    assert (ping, stop) == ({"type": "ping"}, {"type": "message_stop"})
    assert opened["content_block"] == {"type": "text", "text": ""}
    assert {(each["type"], each["index"]) for each in deltas} == {("content_block_delta", 0)}
    assert "".join(each["delta"]["text"] for each in deltas) == "Hi"
    assert closed == {"type": "content_block_stop", "index": 0}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_can_be_omitted(stream: bool) -> None:
    response, _ = post("<think>Hm.</think>Hi", thinking=THINKING, stream=stream)
    assert "Hm." not in response.text
    if stream:
        deltas = [each.get("delta", {}) for each in read_named_events(response.text)]
        (signature,) = (each["signature"] for each in deltas if "signature" in each)
    else:
        thinking, text = response.json()["content"]
        assert (thinking["thinking"], text["text"]) == ("", "Hi")
        signature = thinking["signature"]
    assert signature


def test_thinking_can_be_disabled() -> None:
    _, backend = post("Hi", thinking={"type": "disabled"})
    assert read_prompt(backend).endswith("<think></think>")


def test_arguments_are_returned_unchanged() -> None:
    large = '{"city": 123456789012345678901234567890}'
    response, _ = post(CALL.replace('{"city": "Paris"}', large), tools=[TOOL])
    (block,) = response.json()["content"]
    assert block["input"] == json.loads(large)


def test_cut_arguments_are_empty() -> None:
    response, _ = post(CALL, tools=[TOOL], max_tokens=len(CALL) - 20)
    message = response.json()
    assert message["content"][0]["input"] == {}
    assert message["stop_reason"] == "max_tokens"


def test_context_limits_the_response() -> None:
    response, backend = post("x" * 5000, max_tokens=100_000)
    room = 5000 - len("user: Hi\n")
    assert backend.submitted[0]["max_new_tokens"] == room
    message = response.json()
    assert len(message["content"][0]["text"]) == room
    assert message["stop_reason"] == "model_context_window_exceeded"


def test_last_message_of_the_assistant_is_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    response, backend = post("lo", messages=messages)
    assert read_prompt(backend) == "user: Hi\nassistant: Hel"
    assert response.json()["content"] == [{"type": "text", "text": "lo"}]


def test_tokens_are_counted_beyond_the_context() -> None:
    messages = [{"role": "user", "content": "x" * 6000}]
    response, backend = post("", path=f"{PATH}/count_tokens", messages=messages, system="S")
    assert response.json() == {"input_tokens": len("system: S\nuser: \n") + 6000}
    assert backend.submitted == []


@pytest.mark.parametrize(
    ("path", "changes", "status", "kind"),
    [
        (PATH, {"model": "x"}, 404, "not_found_error"),
        (PATH, {"messages": [{"role": "user", "content": "x" * 6000}]},
         400, "invalid_request_error"),
        (f"{PATH}/count_tokens", {"model": "x"}, 404, "not_found_error"),
        (f"{PATH}/batches", {}, 404, "not_found_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_shape(path: str, changes: Any, status: int, kind: str) -> None:
    with make_client(FakeBackend()) as client:
        response = client.post(path, json=body(**changes))
    error = response.json()
    assert (response.status_code, error["type"]) == (status, "error")
    assert (set(error), set(error["error"])) == ({"type", "error"}, {"type", "message"})
    assert error["error"]["type"] == kind


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_keys(tmp_path: Path, path: str) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "alice", now_s=1.0)
    other = add_key(file, "bob", now_s=1.0, models=("other",))
    with make_client(FakeBackend(), {"keys_file": str(file)}) as client:
        responses = [
            client.post(path, json=body(), headers=headers)
            for headers in ({}, {"x-api-key": other}, {"x-api-key": key})
        ]
    assert [each.status_code for each in responses] == [401, 404, 200]
    kinds = [each.json()["error"]["type"] for each in responses[:2]]
    assert kinds == ["authentication_error", "not_found_error"]


def test_wrong_method_has_anthropics_shape() -> None:
    with make_client(FakeBackend()) as client:
        response = client.get(PATH)
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_model_without_a_template(path: str) -> None:
    with make_client(FakeBackend(), template=None) as client:
        response = client.post(path, json=body())
    assert response.status_code == 400
    assert "--chat-template" in response.json()["error"]["message"]
