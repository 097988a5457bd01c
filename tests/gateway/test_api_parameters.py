"""Tests that openai-parameters.md agrees with the gateway about each parameter."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from tests.gateway.fakes import FakeBackend, LetterTokenizer, LoadedRegistry, generates, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.schema.completions import CompletionBody
from trtllm_serve_cli.gateway.schema.messages import MessagesBody
from trtllm_serve_cli.gateway.schema.responses import ResponsesBody
from trtllm_serve_cli.runtime.engines.kinds import kind_names

DOCS = Path(__file__).parents[2] / "docs"
ENDPOINTS: list[dict[str, Any]] = yaml.safe_load(
    (DOCS / "generators" / "api_parameters.yaml").read_text("utf-8")
)
BODIES: Mapping[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
}
# A template that writes everything that a request can pass to it.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{{ tools }}{{ documents }}{{ reasoning_effort }}{{ enable_thinking }}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
# Parts of a response that differ between two identical requests.
VARYING = re.compile(r'[0-9a-f]{32}|(?<="created":)\d+|(?<=ed_at":)\d+')


class StartTokenizer(LetterTokenizer):
    """A tokenizer that adds a special token at the start."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + super().encode(text)


def read_marks() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the words in the page for each endpoint and parameter, in the order of the kinds."""
    marks: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in (DOCS / "reference" / "openai-parameters.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            marks[line.removeprefix("## ")] = rows = {}
        elif line.startswith("| `"):
            label, *words = (cell.strip() for cell in line.strip("|").split("|"))
            rows[label.replace("`", "")] = tuple(words[: len(kind_names())])
    return marks


MARKS = read_marks()


def examples_of(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for each in endpoint["parameters"].values() for name, value in each.items()}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each["path"])
def test_each_parameter_is_a_field_and_the_reverse(endpoint: Mapping[str, Any]) -> None:
    examples = examples_of(endpoint)
    fields = {each.name for each in msgspec.structs.fields(BODIES[endpoint["path"]])}
    assert {name.split()[0] for name in examples} == fields
    assert MARKS[endpoint["path"]].keys() == examples.keys()


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each["path"])
def test_page_agrees_with_the_gateway(
    endpoint: Mapping[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda bits: 42)
    column = kind_names().index(kind)
    expected = {name: words[column] for name, words in MARKS[endpoint["path"]].items()}
    assert asyncio.run(classify_all(endpoint, kind)) == expected


def test_required_parameters_are_named() -> None:
    asyncio.run(check_required())


async def check_required() -> None:
    gateway = Gateway("sim")
    for endpoint in ENDPOINTS:
        for name in endpoint["request"].keys() - {"prompt"}:
            body = {key: value for key, value in endpoint["request"].items() if key != name}
            status, answer = await gateway.post(endpoint["path"], body)
            error = json.loads(answer)["error"]
            assert status == 400
            assert name in error["message"]
            assert error.get("param", name) == name


class Gateway:
    """A gateway with the model `demo` and its adapter `poet`, on a fake engine.

    It answers in the event loop of the test, because a thread would double the time of the test.
    """

    def __init__(self, kind: str) -> None:
        self.backend = FakeBackend()
        template = ChatTemplate(TEMPLATE, tool_parser="hermes")
        model = make_model(self.backend, engine_kind=kind, template=template)
        model = dataclasses.replace(model, tokenizer=StartTokenizer())
        config = GatewayConfig((ServedModel("demo", "demo", Endpoint()),))
        registry = LoadedRegistry(config, model, model.with_adapter("poet"))
        transport = httpx.ASGITransport(build_app(config, registry))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        self.backend.submitted.clear()
        response = await self.client.post(path, json=body)
        return response.status_code, VARYING.sub("0", response.text)


async def classify_all(endpoint: Mapping[str, Any], kind: str) -> dict[str, str]:
    gateway = Gateway(kind)
    return {
        name: await classify(gateway, endpoint, name, value)
        for name, value in examples_of(endpoint).items()
    }


async def classify(gateway: Gateway, endpoint: Mapping[str, Any], name: str, value: Any) -> str:
    """Return what the gateway does with a parameter: served, ignored or rejected."""
    path, parameter = endpoint["path"], name.split()[0]
    without = {**endpoint["request"], **endpoint.get("with", {}).get(name, {})}
    has_tools = "tools" in without or parameter == "tools"
    gateway.backend.reply = generates(CALL * 2 if has_tools else "Hel\0lo!")
    status, answer = await gateway.post(path, {**without, parameter: value})
    if status != 200:
        check_error(status, json.loads(answer), path, parameter)
        return "rejected"
    submitted = [*gateway.backend.submitted]
    status, plain = await gateway.post(path, without)
    assert status == 200, (name, plain)
    is_same = submitted == gateway.backend.submitted
    return (
        "ignored" if is_same and remove(answer, parameter) == remove(plain, parameter) else "served"
    )


def check_error(status: int, answer: dict[str, Any], path: str, parameter: str) -> None:
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    if path == "/v1/messages":
        # Errors of Anthropic's API have no `param`.
        assert re.split(r"[ .]", error["message"])[0] == parameter
    else:
        assert error["param"].split(".")[0] == parameter
        assert error["code"] == "unsupported_parameter"


def remove(answer: str, parameter: str) -> Any:
    """Return a response without the parameter's own value. Return a stream unchanged."""
    if not answer.startswith("{"):
        return answer
    return {name: value for name, value in json.loads(answer).items() if name != parameter}
