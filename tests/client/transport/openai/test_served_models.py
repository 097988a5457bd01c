from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.openai_server import FakeOpenAI
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint, parse_base_url
from trtllm_serve_cli.client.transport.openai.served_models import (
    ListedModel,
    fetch_version,
    find_model,
)
from trtllm_serve_cli.errors import BadInput, RequestFailed, TimedOut


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def _find(server: FakeOpenAI, name: str | None = None, path: str = "") -> ListedModel:
    return find_model(OpenAIEndpoint(parse_base_url(server.url + path)), name)


def test_the_only_model_is_the_default(server: FakeOpenAI) -> None:
    assert _find(server) == ListedModel("org/demo", 1000)


def test_adapters_are_not_models(server: FakeOpenAI) -> None:
    server.models += [{"id": "pirate", "parent": "org/demo"}]
    assert _find(server).name == "org/demo"


def test_names_need_not_be_listed(server: FakeOpenAI) -> None:
    assert _find(server, "alias") == ListedModel("alias")
    assert _find(server, "alias", path="/nowhere") == ListedModel("alias")


def test_several_models_require_a_name(server: FakeOpenAI) -> None:
    server.models = [{"id": f"m{number}"} for number in range(12)]
    with pytest.raises(BadInput, match="The server has several models") as refused:
        _find(server)
    assert refused.value.why.endswith("m9 and 2 more")
    assert refused.value.next_step == "select a model with -m, for example -m m0"


def test_an_empty_list_requires_a_name(server: FakeOpenAI) -> None:
    server.models = []
    with pytest.raises(BadInput, match="The server does not list any models"):
        _find(server)


def test_a_server_without_a_list_requires_a_name(server: FakeOpenAI) -> None:
    with pytest.raises(BadInput, match="A model name is required"):
        _find(server, path="/nowhere")


def test_a_missing_key_is_reported(server: FakeOpenAI) -> None:
    server.api_key = "secret"
    with pytest.raises(RequestFailed, match="requires a valid API key"):
        _find(server, "org/demo")


def test_a_server_that_does_not_respond_is_reported(silent: Endpoint) -> None:
    endpoint = OpenAIEndpoint(parse_base_url(silent.http))
    with pytest.raises(TimedOut, match=f"http://{silent.http}/v1 did not finish") as raised:
        find_model(endpoint, None, timeout_s=0.3)
    assert raised.value.next_step == "read the server's log and run the command again"


def test_an_invalid_list_is_reported(server: FakeOpenAI) -> None:
    server.models = [{"name": "x"}]
    with pytest.raises(RequestFailed, match="is invalid"):
        _find(server)


@pytest.mark.parametrize("version", ["0.9.1", ""])
def test_version_is_optional(server: FakeOpenAI, version: str) -> None:
    server.version = version
    assert fetch_version(OpenAIEndpoint(parse_base_url(server.url))) == version
