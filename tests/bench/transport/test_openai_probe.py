from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.openai_server import FakeOpenAI, exact_length
from trtllm_serve_cli.bench.model.served_model import InputKind, OpenAITarget, ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.openai_probe import probe_model
from trtllm_serve_cli.client.transport.openai.endpoint import (
    Api,
    OpenAIEndpoint,
    parse_base_url,
)
from trtllm_serve_cli.errors import NoServer, RequestFailed


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer=exact_length) as fake:
        yield fake


def _probe(
    server: FakeOpenAI,
    kind: InputKind = "tokens",
    model: str = "org/demo",
    api: Api = "completions",
    *,
    needs_ids: bool = False,
) -> ServedModel:
    target = OpenAITarget(OpenAIEndpoint(parse_base_url(server.url), "key"), model, api)
    return probe_model(target, kind, RequestOptions(stream=True, timeout_s=30, needs_ids=needs_ids))


def test_served_model_has_the_accepted_fields(server: FakeOpenAI) -> None:
    model = _probe(server)
    assert model.inputs == {
        "prompt", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options",
    }  # fmt: skip
    assert (model.address, model.server_version) == (server.url, "0.9.1")
    assert server.bodies[0]["max_tokens"] == 1


def test_key_is_not_part_of_results(server: FakeOpenAI) -> None:
    model = _probe(server)
    assert model.api_key == "key"
    assert "key" not in f"{model} {model.to_json()}".replace("key=", "")


def test_rejected_fields_are_left_out(server: FakeOpenAI) -> None:
    server.rejects = frozenset({"ignore_eos", "max_tokens", "temperature", "stream_options"})
    inputs = _probe(server, "text", api="chat").inputs
    assert inputs == {"messages", "max_completion_tokens", "min_tokens", "stream"}


def test_extensions_are_left_out_if_the_server_does_not_name_a_field(server: FakeOpenAI) -> None:
    server.rejects = frozenset({"ignore_eos"})
    server.hides_names = True
    assert "min_tokens" in _probe(server).inputs
    server.rejects = frozenset({"ignore_eos", "min_tokens"})
    assert not {"ignore_eos", "min_tokens"} & _probe(server).inputs


def test_token_ids_must_be_accepted(server: FakeOpenAI) -> None:
    server.rejects = frozenset({"token_ids"})
    with pytest.raises(RequestFailed, match="org/demo rejected a prompt of token ids") as refused:
        _probe(server)
    assert "end-to-end" in refused.value.next_step
    assert _probe(server, "text").inputs >= {"prompt"}


def test_conversations_require_token_ids_of_responses(server: FakeOpenAI) -> None:
    with pytest.raises(RequestFailed, match="does not return token ids"):
        _probe(server, needs_ids=True)
    server.has_token_ids = True
    assert "return_token_ids" in _probe(server, needs_ids=True).inputs


def test_other_failures_are_reported(server: FakeOpenAI) -> None:
    with pytest.raises(RequestFailed, match="The server does not have a model named 'nope'"):
        _probe(server, model="nope")
    server.api_key = "other"
    with pytest.raises(RequestFailed, match="requires a valid API key"):
        _probe(server)
    target = OpenAITarget(OpenAIEndpoint(parse_base_url("127.0.0.1:1")), "x", "chat")
    with pytest.raises(NoServer):
        probe_model(target, "text", RequestOptions())
