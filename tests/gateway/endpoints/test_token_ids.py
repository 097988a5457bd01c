from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_events
from tests.gateway.live_server import serve
from trtllm_serve_cli.bench.model.served_model import OpenAITarget
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.openai_probe import probe_model
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint, parse_base_url
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "function": {"name": "now"}}],
    "return_token_ids": True,
}
COMPLETION = {"model": "demo", "prompt": ["Hi", "Yo"], "return_token_ids": True}
TEMPLATE = ChatTemplate("{{ messages[0].content }}{{ tools and '' }}", tool_parser="hermes")


def ids_of(text: str) -> list[int]:
    return [*map(ord, text)]


def join_ids(choices: Iterable[dict[str, Any]], name: str = "token_ids") -> list[int]:
    return [each for choice in choices for each in choice.get(name, ())]


def read_chunks(text: str) -> list[dict[str, Any]]:
    return [json.loads(event) for event in read_events(text)[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_returns_all_token_ids(stream: bool) -> None:
    with make_client(FakeBackend(generates(CALL)), template=TEMPLATE) as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "stream": stream, "n": 2})
    chunks = read_chunks(response.text) if stream else [response.json()]
    assert chunks[0]["prompt_token_ids"] == ids_of("Hi")
    assert all("prompt_token_ids" not in each for each in chunks[1:])
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(2):
        assert join_ids(each for each in choices if each["index"] == index) == ids_of(CALL)


@pytest.mark.parametrize("options", [{}, {"echo": True}, {"stream": True}])
def test_completions_return_the_token_ids_of_each_prompt(options: dict[str, Any]) -> None:
    with make_client(FakeBackend(generates("ab"))) as client:
        response = client.post("/v1/completions", json={**COMPLETION, **options})
    chunks = read_chunks(response.text) if "stream" in options else [response.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, prompt in enumerate(COMPLETION["prompt"]):
        own = [each for each in choices if each["index"] == index]
        assert own[0]["prompt_token_ids"] == ids_of(prompt)
        assert join_ids(own, "prompt_token_ids") == ids_of(prompt)
        assert join_ids(own) == ids_of("ab")


def test_token_ids_are_not_returned_by_default() -> None:
    with make_client(FakeBackend()) as client:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            text = client.post(path, json={**body, "return_token_ids": None, "tools": None}).text
            assert "token_ids" not in text


def test_benchmark_of_conversations_gets_token_ids() -> None:
    options = RequestOptions(stream=True, timeout_s=30, needs_ids=True)
    with serve(FakeBackend(generates("ab"))) as url:
        endpoint = OpenAIEndpoint(parse_base_url(url), None)
        model = probe_model(OpenAITarget(endpoint, "demo", "completions"), "tokens", options)
    assert model.inputs >= {"return_token_ids", "ignore_eos", "stream_options"}
