from __future__ import annotations

import json
import string
import tracemalloc
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, fail, generates, make_client, make_model, read_events
from trtllm_serve_cli.gateway.endpoints.chat import ChatWriter, plan_chat
from trtllm_serve_cli.gateway.generation.text_stream import TextDelta
from trtllm_serve_cli.gateway.http import decode_json
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.runtime.engine import PromptFacts, SequenceUpdate

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": MESSAGES, **fields}


def test_whole_response() -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        response = client.post(PATH, json=body(temperature=0))
    answer = response.json()
    assert (response.status_code, answer["object"]) == (200, "chat.completion")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = "user: Hi\nassistant: "
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == 6
    (fields,) = backend.submitted
    assert fields["input_ids"] == tuple(map(ord, prompt))
    assert (fields["max_new_tokens"], fields["top_k"]) == (200 - len(prompt), 1)
    assert backend.cancelled == []


def test_stream_has_role_content_finish_reason_usage_and_end() -> None:
    with make_client(FakeBackend(generates("Hé!"))) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = client.post(PATH, json=body(**options))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, end = read_events(response.text)
    chunks = [json.loads(event) for event in events]
    assert end == "[DONE]"
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    *deltas, usage = chunks
    role, *contents, last = (each["choices"][0]["delta"] for each in deltas)
    assert (role, last) == ({"role": "assistant", "content": ""}, {})
    # Tokens that arrive together share a chunk.
    assert "".join(each["content"] for each in contents) == "Hé!"
    reasons = [each["choices"][0]["finish_reason"] for each in deltas]
    assert (set(reasons[:-1]), reasons[-1]) == ({None}, "stop")
    assert all(each["usage"] is None for each in deltas)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)


def test_stream_does_not_keep_its_text() -> None:
    model = make_model(FakeBackend())
    writer = ChatWriter(model, plan_chat(model, decode_json(json.dumps(body()).encode(), ChatBody)))
    length = 10_000
    tracemalloc.start()
    try:
        for letter in string.ascii_letters:
            assert letter * length in writer.events(TextDelta(0, letter * length)).decode()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 * length


def test_several_choices_and_log_probabilities() -> None:
    with make_client(FakeBackend(generates("ab"))) as client:
        answer = client.post(PATH, json=body(n=2, logprobs=True, top_logprobs=0)).json()
    assert [each["message"]["content"] for each in answer["choices"]] == ["ab", "ab"]
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][1]["logprobs"]["content"][1] == {
        "token": "b",
        "logprob": -0.5,
        "bytes": [98],
        "top_logprobs": [],
    }


def test_alternatives_are_listed_with_each_token() -> None:
    with make_client(FakeBackend(generates("a")), engine_kind="vllm") as client:
        answer = client.post(PATH, json=body(logprobs=True, top_logprobs=2)).json()
    assert answer["choices"][0]["logprobs"]["content"] == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "b", "logprob": -1.5, "bytes": [98]},
            ],
        }
    ]


def test_bias_and_min_p_reach_the_engine() -> None:
    backend = FakeBackend()
    with make_client(backend, engine_kind="vllm") as client:
        client.post(PATH, json=body(logit_bias={"5": -100, "6": 0, "7": 1.5}, min_p=0.25))
    assert backend.submitted[0]["logit_bias"] == ((5, -100.0), (7, 1.5))
    assert backend.submitted[0]["min_p"] == 0.25


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_cached_tokens(stream: bool) -> None:
    def reply(request_id: int, fields: Any) -> Any:
        yield SequenceUpdate(request_id, 0, (97,), prompt=PromptFacts(16))
        yield SequenceUpdate(request_id, 0, (98,), "stop")

    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with make_client(FakeBackend(reply)) as client:
        response = client.post(PATH, json=body(**options))
    answer = json.loads(read_events(response.text)[-2]) if stream else response.json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        ({"structured_outputs": {"json_object": True}}, {"type": "object"}),
        ({"response_format": {"type": "json_object", "schema": {"const": 4}}}, {"const": 4}),
    ],
)
def test_json_object_forces_an_object(fields: dict[str, Any], schema: dict[str, Any]) -> None:
    """Engines also generate numbers if no schema forbids it. `schema` is llama.cpp's field."""
    backend = FakeBackend()
    with make_client(backend) as client:
        client.post(PATH, json=body(**fields))
    assert backend.submitted[0]["guide_type"] == "json_schema"
    assert json.loads(backend.submitted[0]["guide"]) == schema


@pytest.mark.parametrize(
    "fields", [{"guided_choice": ["a.", "b"]}, {"structured_outputs": {"choice": ["a.", "b"]}}]
)
def test_choices_become_a_regular_expression(fields: dict[str, Any]) -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        client.post(PATH, json=body(**fields))
    submitted = backend.submitted[0]
    assert (submitted["guide_type"], submitted["guide"]) == ("regex", r"a\.|b")


def test_usage_omits_unknown_details() -> None:
    """OpenAI's specification requires an object if the field exists."""
    with make_client(FakeBackend()) as client:
        usage = client.post(PATH, json=body()).json()["usage"]
    assert usage.keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_error_names_the_missing_field() -> None:
    function = {"role": "assistant", "tool_calls": [{"id": "a"}]}
    with make_client(FakeBackend()) as client:
        missing = client.post(PATH, json={"messages": body()["messages"]}).json()["error"]
        nested = client.post(PATH, json=body(messages=[function])).json()["error"]
    assert missing["param"] == "model"
    assert missing["message"] == "`model` is required."
    assert nested["param"] == "messages[0].tool_calls[0].function"


def test_stop_string_ends_the_text_and_the_request() -> None:
    backend = FakeBackend(generates("one two three "), is_endless=True)
    with make_client(backend) as client:
        answer = client.post(PATH, json=body(stop=["three", "tw"])).json()
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "tw"
    assert backend.cancelled == [1]


def test_response_may_end_at_the_limit() -> None:
    with make_client(FakeBackend()) as client:
        answer = client.post(PATH, json=body(max_completion_tokens=2, max_tokens=5)).json()
    assert answer["choices"][0]["message"]["content"] == "He"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_content_parts_and_developer_messages_are_rendered() -> None:
    backend = FakeBackend()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    with make_client(backend) as client:
        client.post(PATH, json=body(messages=messages))
    prompt = "".join(map(chr, backend.submitted[0]["input_ids"]))
    assert prompt == "system: Be brief.\nuser: a\nb\nassistant: "


@pytest.mark.parametrize(
    ("changes", "status", "param", "code"),
    [
        ({"model": "x"}, 404, "model", "model_not_found"),
        ({"messages": []}, 400, "messages", None),
        ({"messages": "Hi"}, 400, "messages", None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         400, "messages", "unsupported_parameter"),
        ({"temperature": 3}, 400, "temperature", None),
        ({"n": 0}, 400, "n", None),
        ({"top_logprobs": 1}, 400, "top_logprobs", None),
        ({"stream_options": {}}, 400, "stream_options", None),
        ({"stop": [""]}, 400, "stop", None),
        ({"max_tokens": 500}, 400, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "x" * 300}]},
         400, "messages", "context_length_exceeded"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias", "unsupported_parameter"),
        ({"logit_bias": {"five": 1}}, 400, "logit_bias", None),
        ({"logit_bias": {"1114112": 1}}, 400, "logit_bias", None),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias", None),
        ({"logit_bias": {"1" * 5000: 1}}, 400, "logit_bias", None),
        ({"guided_choice": []}, 400, "guided_choice", None),
        ({"structured_outputs": {"choice": []}}, 400, "structured_outputs", None),
        ({"structured_outputs": {"choice": 5}}, 400, "structured_outputs", None),
        ({"structured_outputs": {"choice": True}}, 400, "structured_outputs", None),
        ({"structured_outputs": {"choice": "yes"}}, 400, "structured_outputs", None),
        ({"structured_outputs": {"choice": ["yes", 5]}}, 400, "structured_outputs", None),
        ({"logprobs": True, "top_logprobs": 1}, 400, "top_logprobs", "unsupported_parameter"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format", None),
    ],
)  # fmt: skip
def test_errors_have_openais_shape(
    changes: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    backend = FakeBackend()
    with make_client(backend) as client:
        response = client.post(PATH, json=body(**changes))
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert backend.submitted == []


@pytest.mark.parametrize(
    ("reply", "status", "kind"),
    [
        (fail("temperature is 9", rejected=True), 400, "invalid_request_error"),
        (fail("Exceeds maximum queue size. …", rejected=True), 429, "rate_limit_error"),
        (fail("the engine worker died; retry the request"), 503, "service_unavailable_error"),
        (fail("out of memory"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_engine(reply: Any, status: int, kind: str, stream: bool) -> None:
    with make_client(FakeBackend(reply)) as client:
        response = client.post(PATH, json=body(stream=stream))
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_error_after_the_first_token_is_an_event() -> None:
    def reply(request_id: int, fields: Any) -> Any:
        yield from list(generates("ab")(request_id, fields))[:2]
        yield from fail("out of memory")(request_id, fields)

    with make_client(FakeBackend(reply)) as client:
        response = client.post(PATH, json=body(stream=True))
    *_, last = read_events(response.text)
    assert json.loads(last)["error"]["message"] == "out of memory"


def test_model_without_a_template() -> None:
    with make_client(FakeBackend(), template=None) as client:
        response = client.post(PATH, json=body())
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert "--chat-template" in response.json()["error"]["message"]
