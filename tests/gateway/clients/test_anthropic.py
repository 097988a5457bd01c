"""The official client of Anthropic's API against the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.fakes import FakeBackend, fail, generates
from tests.gateway.live_server import CALL, INFO, TEMPLATE, read_prompt, serve
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

# The import takes over 2 s, which each process would need to collect the tests.
if TYPE_CHECKING:
    import anthropic

WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[anthropic.Anthropic, FakeBackend]]:
    import anthropic

    backend = FakeBackend()
    with (
        serve(backend, info=INFO, template=ChatTemplate(TEMPLATE)) as url,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client,
    ):
        yield client, backend


@pytest.fixture
def client(served: tuple[anthropic.Anthropic, FakeBackend]) -> anthropic.Anthropic:
    return served[0]


@pytest.fixture
def backend(served: tuple[anthropic.Anthropic, FakeBackend]) -> FakeBackend:
    """Return the client's backend, which generates "Hello!" unless the test changes its reply."""
    _, backend = served
    backend.submitted.clear()
    backend.reply = generates("Hello!")
    return backend


def body(**fields: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "demo", "max_tokens": 500, "messages": messages, **fields}


def test_whole_message(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    message = client.messages.create(**body(system="Be brief."))
    assert [each.to_dict() for each in message.content] == [{"type": "text", "text": "Hello!"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.role, message.type, message.model) == ("assistant", "message", "demo")
    prompt = "system: Be brief.\nuser: Hi\n"
    assert read_prompt(backend) == prompt
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(prompt), 6)


def test_beta_client(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    message = client.beta.messages.create(**body())
    assert message.content[0].to_dict() == {"type": "text", "text": "Hello!"}


def test_streamed_message(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    with client.messages.stream(**body()) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(texts) == "Hello!"
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len("user: Hi\n"), 6)


def test_raw_events_are_in_order(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    backend.reply = generates("<think>Hm.</think>Sure. " + CALL)
    events = list(client.messages.create(**body(tools=[WEATHER], stream=True)))
    kinds = [each.type for each in events if each.type != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]


def test_streamed_thinking_text_and_tool_use(
    client: anthropic.Anthropic, backend: FakeBackend
) -> None:
    backend.reply = generates("<think>Hm.</think>Sure. " + CALL)
    with client.messages.stream(**body(tools=[WEATHER])) as stream:
        message = stream.get_final_message()
    whole = client.messages.create(**body(tools=[WEATHER]))
    thinking, text, call = (each.to_dict() for each in message.content)
    assert (thinking["thinking"], text["text"]) == ("Hm.", "Sure.")
    assert thinking["signature"]
    assert (call["name"], call["input"]) == ("weather", {"city": "Paris"})
    assert message.stop_reason == whole.stop_reason == "tool_use"
    assert [each.to_dict() for each in whole.content[:2]] == [thinking, text]
    assert whole.content[2].to_dict() == {**call, "id": whole.content[2].to_dict()["id"]}
    assert message.usage.to_dict()["output_tokens_details"] == {"thinking_tokens": 3}


def test_conversation_with_a_tool_result(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    backend.reply = generates("<think>Hm.</think>Sure. " + CALL)
    first = client.messages.create(**body(tools=[WEATHER]))
    backend.submitted.clear()
    result = {
        "type": "tool_result",
        "tool_use_id": first.content[2].to_dict()["id"],
        "content": [{"type": "text", "text": "Sunny"}],
    }
    history = [
        {"role": "user", "content": "Hi"},
        first.to_param(),
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    client.messages.create(**body(messages=history, tools=[WEATHER]))
    assert read_prompt(backend) == (
        "weather;user: Hi\nassistant: Sure.(Hm.)"
        '<tool_call>weather {"city": "Paris"}</tool_call>\ntool: Sunny\nuser: And?\n'
    )


def test_stop_sequence_and_maximum(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    backend.reply = generates("one two three")
    stopped = client.messages.create(**body(stop_sequences=["three", "two"]))
    with client.messages.stream(**body(max_tokens=3)) as stream:
        cut = stream.get_final_message()
    full = client.messages.create(**body(max_tokens=20_000))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
    assert stopped.content[0].to_dict()["text"] == "one "
    assert (cut.stop_reason, cut.content[0].to_dict()["text"]) == ("max_tokens", "one")
    assert full.stop_reason == "end_turn"


def test_count_tokens(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    fields = body(tools=[WEATHER])
    del fields["max_tokens"]
    count = client.messages.count_tokens(**fields)
    assert count.input_tokens == len("weather;user: Hi\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "error", "kind"),
    [
        ({"model": "x"}, "NotFoundError", "not_found_error"),
        ({"max_tokens": 0}, "BadRequestError", "invalid_request_error"),
        ({"messages": []}, "BadRequestError", "invalid_request_error"),
    ],
)
def test_errors_of_requests(
    client: anthropic.Anthropic,
    backend: FakeBackend,
    changes: Any,
    error: str,
    kind: str,
    stream: bool,
) -> None:
    import anthropic

    with pytest.raises(getattr(anthropic, error)) as raised:
        client.messages.create(**body(**changes, stream=stream))
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["type"] == kind


@pytest.mark.parametrize(
    ("reply", "error", "kind"),
    [
        (fail("Exceeds maximum queue size.", rejected=True), 429, "rate_limit_error"),
        (fail("the engine worker died; retry the request"), 503, "overloaded_error"),
        (fail("out of memory"), 500, "api_error"),
    ],
)
def test_errors_of_the_engine(
    client: anthropic.Anthropic, backend: FakeBackend, reply: Any, error: int, kind: str
) -> None:
    import anthropic

    backend.reply = reply
    with pytest.raises(anthropic.APIStatusError) as raised:
        client.messages.create(**body())
    assert raised.value.status_code == error
    described: Any = raised.value.body
    assert described["error"]["type"] == kind


def test_error_in_a_stream(client: anthropic.Anthropic, backend: FakeBackend) -> None:
    import anthropic

    def reply(request_id: int, fields: Any) -> Any:
        yield from list(generates("a" * 50)(request_id, fields))[:50]
        yield from fail("out of memory")(request_id, fields)

    backend.reply = reply
    with (
        client.messages.stream(**body()) as stream,
        pytest.raises(anthropic.APIStatusError, match="out of memory"),
    ):
        stream.get_final_message()
    text = stream.current_message_snapshot.content[0].to_dict()["text"]
    assert set(text) == {"a"}


def test_models(client: anthropic.Anthropic) -> None:
    import anthropic

    (listed,) = client.models.list(limit=1, lifecycle=["active"])
    assert listed == client.models.retrieve("demo")
    assert (listed.id, listed.type, listed.lifecycle) == ("demo", "model", "active")
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nosuch")
