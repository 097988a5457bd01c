from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_named_events
from tests.gateway.live_server import CALL, INFO, TEMPLATE
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "weather",
    "description": None,
    "parameters": {"type": "object"},
    "strict": None,
}


def post(reply: str, **fields: Any) -> Any:
    backend = FakeBackend(generates(reply))
    with make_client(backend, info=INFO, template=ChatTemplate(TEMPLATE)) as client:
        response = client.post(PATH, json={"model": "demo", "input": "Hi", **fields})
    assert response.status_code == 200, response.text
    return response


def test_whole_response() -> None:
    response = post("Hello!").json()
    assert response.pop("id").startswith("resp_")
    assert response.pop("completed_at") >= response.pop("created_at")
    (message,) = response.pop("output")
    assert message.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    assert message == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    assert response == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "demo",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": None},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
        "user": None,
    }


def test_parameters_are_echoed() -> None:
    schema = {"type": "object"}
    format_ = {
        "type": "json_schema",
        "name": "x",
        "schema": schema,
        "strict": True,
        "description": None,
    }
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "weather"}],
    }
    fields = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 50,
        "tools": [TOOL],
        "tool_choice": allowed,
        "parallel_tool_calls": False,
        "text": {"format": format_, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
    }
    response = post("{}", **fields).json()
    assert {name: response[name] for name in fields} == fields
    assert post("{}", store=True).json()["store"] is False


def test_named_tool_choice_is_echoed() -> None:
    choice = {"type": "function", "name": "weather"}
    response = post('{"city": "Paris"}', tools=[TOOL], tool_choice=choice).json()
    assert response["tool_choice"] == choice
    (call,) = response["output"]
    assert (call["type"], call["arguments"]) == ("function_call", '{"city": "Paris"}')


def test_stream_numbers_events_and_closes_items_in_order() -> None:
    response = post(f"<think>Hm.</think>Sure. {CALL}", tools=[TOOL], stream=True)
    events = read_named_events(response.text)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    items = [each for each in events if each["type"].startswith("response.output_item.")]
    states = [(each["output_index"], each["item"]["status"]) for each in items]
    assert states == [(n, state) for n in range(3) for state in ("in_progress", "completed")]
    done = [each["item"] for each in items[1::2]]
    assert [each["type"] for each in done] == ["reasoning", "message", "function_call"]
    final = events[-1]["response"]
    assert final["output"] == done
    assert len({each["id"] for each in done}) == 3
    assert done[-1]["arguments"] == '{"city": "Paris"}'


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "x"}, 404, "model"),
        ({"input": 5}, 400, "input"),
        ({"max_output_tokens": 10_000}, 400, "input"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [{**TOOL, "type": "mcp"}]}, 400, "tools"),
    ],
)
def test_errors_name_the_parameters_of_the_request(
    changes: dict[str, Any], status: int, param: str
) -> None:
    with make_client(FakeBackend()) as client:
        response = client.post(PATH, json={"model": "demo", "input": "Hi", **changes})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_model_without_a_template() -> None:
    with make_client(FakeBackend(), template=None) as client:
        response = client.post(PATH, json={"model": "demo", "input": "Hi"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
