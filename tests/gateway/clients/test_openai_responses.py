"""The official client of OpenAI's Responses API against the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, TypeAdapter

from tests.gateway.fakes import FakeBackend, fail, generates
from tests.gateway.live_server import CALL, INFO, TEMPLATE, read_prompt, serve
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

# The import takes 1 s, which each process would need to collect the tests.
if TYPE_CHECKING:
    import openai

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
OPEN = ["response.output_item.added", "response.content_part.added"]
CLOSE = ["response.content_part.done", "response.output_item.done"]


class City(BaseModel):
    city: str


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[openai.OpenAI, FakeBackend]]:
    import openai

    backend = FakeBackend()
    with (
        serve(backend, info=INFO, template=ChatTemplate(TEMPLATE)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client, backend


@pytest.fixture
def client(served: tuple[openai.OpenAI, FakeBackend]) -> openai.OpenAI:
    return served[0]


@pytest.fixture
def backend(served: tuple[openai.OpenAI, FakeBackend]) -> FakeBackend:
    """Return the client's backend, which generates "Hello!" unless the test changes its reply."""
    _, backend = served
    backend.submitted.clear()
    backend.reply = generates("Hello!")
    return backend


def body(**fields: Any) -> Any:
    return {"model": "demo", "input": "Hi", **fields}


def list_kinds(events: list[Any]) -> list[str]:
    """Return the events' types, with one type for consecutive deltas, and check their numbers."""
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type for each in events]
    return [
        kind
        for index, kind in enumerate(kinds)
        if not kind.endswith(".delta") or kind != kinds[index - 1]
    ]


def test_whole_response_has_all_fields(client: openai.OpenAI, backend: FakeBackend) -> None:
    from openai.types.responses import Response

    response = client.responses.create(
        **body(instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=100)
    )
    # The client does not validate responses itself.
    Response.model_validate(response.to_dict())
    assert (response.output_text, response.status) == ("Hello!", "completed")
    assert (response.metadata, response.to_dict()["store"]) == ({"a": "b"}, False)
    assert response.instructions == "Be brief."
    prompt = "system: Be brief.\nuser: Hi\n"
    assert read_prompt(backend) == prompt
    assert response.usage is not None
    assert response.usage.input_tokens == len(prompt)
    assert (response.usage.output_tokens, response.usage.total_tokens) == (6, len(prompt) + 6)


def test_events_of_text(client: openai.OpenAI, backend: FakeBackend) -> None:
    from openai.types.responses import ResponseStreamEvent

    events: list[Any] = list(client.responses.create(**body(stream=True)))
    text = ["response.output_text.delta", "response.output_text.done"]
    start = ["response.created", "response.in_progress"]
    assert list_kinds(events) == [*start, *OPEN, *text, *CLOSE, "response.completed"]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict())
    assert events[-1].response.output_text == "Hello!"


def test_events_of_reasoning_and_a_call(client: openai.OpenAI, backend: FakeBackend) -> None:
    backend.reply = generates("<think>Hm.</think>" + CALL)
    with client.responses.stream(**body(tools=[WEATHER])) as stream:
        events: list[Any] = list(stream)
        response = stream.get_final_response()
    reasoning = ["response.reasoning_text.delta", "response.reasoning_text.done"]
    arguments = "response.function_call_arguments"
    assert list_kinds(events) == [
        "response.created",
        "response.in_progress",
        *OPEN,
        *reasoning,
        *CLOSE,
        OPEN[0],
        f"{arguments}.delta",
        f"{arguments}.done",
        CLOSE[-1],
        "response.completed",
    ]
    thought, call = (each.to_dict() for each in response.output)
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (call["name"], call["parsed_arguments"]) == ("weather", {"city": "Paris"})
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 3


def test_conversation_with_a_tool_result(client: openai.OpenAI, backend: FakeBackend) -> None:
    backend.reply = generates("<think>Hm.</think>" + CALL)
    first = client.responses.create(**body(tools=[WEATHER]))
    backend.submitted.clear()
    call: Any = first.output[1]
    items = [
        {"role": "user", "content": "Hi"},
        *[each.to_dict() for each in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"},
    ]
    client.responses.create(**body(input=items))
    assert read_prompt(backend) == (
        'user: Hi\nassistant: (Hm.)<tool_call>weather {"city": "Paris"}</tool_call>\ntool: Sunny\n'
    )


def test_incomplete_response(client: openai.OpenAI, backend: FakeBackend) -> None:
    whole = client.responses.create(**body(max_output_tokens=2))
    events: list[Any] = list(client.responses.create(**body(max_output_tokens=2, stream=True)))
    for response in (whole, events[-1].response):
        assert (response.status, response.output_text) == ("incomplete", "He")
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"


def test_parsed_text(client: openai.OpenAI, backend: FakeBackend) -> None:
    backend.reply = generates('{"city": "Paris"}')
    response = client.responses.parse(**body(text_format=City))
    assert response.output_parsed == City(city="Paris")
    assert backend.submitted[0]["guide_type"] == "json_schema"
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"model": "x"}, "NotFoundError", "model"),
        ({"previous_response_id": "resp_1"}, "BadRequestError", "previous_response_id"),
        ({"input": "x" * 6000}, "BadRequestError", "input"),
    ],
)
def test_errors_of_requests(
    client: openai.OpenAI, backend: FakeBackend, changes: Any, error: str, param: str, stream: bool
) -> None:
    import openai

    with pytest.raises(getattr(openai, error)) as raised:
        client.responses.create(**body(**changes, stream=stream))
    assert raised.value.param == param


def test_error_in_a_stream(client: openai.OpenAI, backend: FakeBackend) -> None:
    def reply(request_id: int, fields: Any) -> Any:
        yield from list(generates("a" * 50)(request_id, fields))[:50]
        yield from fail("out of memory")(request_id, fields)

    backend.reply = reply
    events: list[Any] = list(client.responses.create(**body(stream=True)))
    *_, error, failed = events
    assert (error.type, error.message) == ("error", "out of memory")
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.code == "server_error"
    assert failed.response.output[0].status == "incomplete"
