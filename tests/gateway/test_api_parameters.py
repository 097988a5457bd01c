"""Tests that openai-parameters.md agrees with the gateway about each parameter and its fields."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import yaml

from tests.gateway.fakes import (
    FakeBackend,
    LetterTokenizer,
    LoadedRegistry,
    Reply,
    generates,
    make_model,
)
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.app import ROUTES, build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.endpoints.tokenize import DetokenizeBody, TokenizeBody
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.schema.chat import ChatBody
from trtllm_serve_cli.gateway.schema.completions import CompletionBody
from trtllm_serve_cli.gateway.schema.embeddings import EmbeddingsBody
from trtllm_serve_cli.gateway.schema.messages import CountTokensBody, MessagesBody
from trtllm_serve_cli.gateway.schema.responses import ResponsesBody
from trtllm_serve_cli.runtime.embedding import encode_vector
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.engines.kinds import kind_names

DOCS = Path(__file__).parents[2] / "docs"
ENDPOINTS, FIELDS = (
    yaml.safe_load((DOCS / "generators" / name).read_text("utf-8"))
    for name in ("api_parameters.yaml", "api_fields.yaml")
)
BODIES: Mapping[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/v1/embeddings": EmbeddingsBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
# A template that writes everything that a request can pass to it, and has the tags of reasoning.
TEMPLATE = (
    "{# <think></think> #}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m }}\n{% endfor %}"
    "{{ tools }}{{ documents }}{{ reasoning_effort }}{{ enable_thinking }}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
EMBEDDER = ModelInfo(
    "embedder",
    max_seq_len=10,
    vocab_size=0x110000,
    embedding=EmbeddingSettings(4, is_matryoshka=True, prompts={"query": "Q:"}),
)
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
# Parts of a response that differ between two identical requests.
VARYING = re.compile(r'[0-9a-f]{32}|(?<="created":)\d+|(?<=ed_at":)\d+')


class StartTokenizer(LetterTokenizer):
    """A tokenizer that adds a special token at the start."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + super().encode(text)


class CapitalTokenizer(LetterTokenizer):
    """A tokenizer with other tokens and texts."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return super().encode(text.upper())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return super().decode(token_ids).upper()


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


def is_field(name: str) -> bool:
    return "." in name


MARKS = read_marks()
# The fields inside parameters have the same mark for all engine kinds.
FIELD_MARKS = {
    path: {name: words[0] for name, words in rows.items() if is_field(name)}
    for path, rows in MARKS.items()
}


def parameter_marks(path: str, kind: str) -> dict[str, str]:
    column = 0 if find_endpoint(path).get("any_engine") else kind_names().index(kind)
    return {name: words[column] for name, words in MARKS[path].items() if not is_field(name)}


def find_endpoint(path: str) -> dict[str, Any]:
    return next(each for each in ENDPOINTS if each["path"] == path)


def examples_of(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for each in endpoint["parameters"].values() for name, value in each.items()}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each["path"])
def test_each_parameter_is_a_field_and_the_reverse(endpoint: Mapping[str, Any]) -> None:
    examples = examples_of(endpoint)
    fields = {each.name for each in msgspec.structs.fields(BODIES[endpoint["path"]])}
    assert {name.split()[0] for name in examples} == fields
    assert parameter_marks(endpoint["path"], "sim").keys() == examples.keys()


def test_all_endpoints_with_a_body_are_listed() -> None:
    """Adapters and Triton's API have their own documentation, and /ping ignores the body."""
    paths = {each.path for each in ROUTES if each.methods is not None and "POST" in each.methods}
    others = {"/ping", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v2{path:path}"}
    assert paths - others == BODIES.keys() == {each["path"] for each in ENDPOINTS}


@pytest.mark.parametrize("entry", FIELDS, ids=lambda each: each["path"])
def test_page_agrees_about_the_fields_inside_parameters(
    entry: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda bits: 42)
    assert asyncio.run(classify_fields(entry)) == FIELD_MARKS[entry["path"]]


async def classify_fields(entry: Mapping[str, Any]) -> dict[str, str]:
    gateway, endpoint = Gateway("vllm"), find_endpoint(entry["path"])
    words = {}
    for name, (without, value) in entry["fields"].items():
        parameter = re.split(r"[.\[]", name)[0]
        others = entry.get("with", {}).get(parameter, {})
        base = {**endpoint["request"], **others, parameter: without}
        words[name] = await compare(gateway, entry["path"], base, parameter, value)
    return words


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each["path"])
def test_page_agrees_with_the_gateway(
    endpoint: Mapping[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda bits: 42)
    assert asyncio.run(classify_all(endpoint, kind)) == parameter_marks(endpoint["path"], kind)


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
    """A gateway with the model `demo`, its adapter `poet`, and two embedders, on a fake engine.

    It answers in the event loop of the test, because a thread would double the time of the test.
    """

    def __init__(self, kind: str) -> None:
        self.backend = FakeBackend()
        template = ChatTemplate(TEMPLATE, tool_parser="hermes")
        info = ModelInfo("demo", max_seq_len=1000, engine_kind=kind, vocab_size=0x110000)
        model = make_model(self.backend, info=info, template=template)
        models = [
            dataclasses.replace(each, tokenizer=tokenizer)
            for each, tokenizer in (
                (model, StartTokenizer()),
                (model.with_adapter("poet", lora_name="poet"), CapitalTokenizer()),
                (dataclasses.replace(model, name="embedder", info=EMBEDDER), StartTokenizer()),
                (dataclasses.replace(model, name="other", info=EMBEDDER), CapitalTokenizer()),
            )
        ]
        config = GatewayConfig((ServedModel("demo", "demo", Endpoint()),))
        registry = LoadedRegistry(config, *models)
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
    without = {**endpoint["request"], **endpoint.get("with", {}).get(name, {})}
    return await compare(gateway, endpoint["path"], without, name.split()[0], value)


async def compare(
    gateway: Gateway, path: str, without: Mapping[str, Any], parameter: str, value: Any
) -> str:
    gateway.backend.reply = choose_reply(path, without, parameter)
    status, answer = await gateway.post(path, {**without, parameter: value})
    if status != 200:
        check_error(status, json.loads(answer), path, parameter)
        return "rejected"
    submitted = [*gateway.backend.submitted]
    status, plain = await gateway.post(path, without)
    assert status == 200, (parameter, value, plain)
    is_same = submitted == gateway.backend.submitted
    return (
        "ignored" if is_same and remove(answer, parameter) == remove(plain, parameter) else "served"
    )


def choose_reply(path: str, without: Mapping[str, Any], parameter: str) -> Reply:
    if path == "/v1/embeddings":
        return embeds
    if "tools" in without or parameter == "tools":
        return generates(CALL * 2)
    return generates("<think>Hm</think>Hi" if parameter == "thinking" else "Hel\0lo!")


def embeds(request_id: int, fields: Mapping[str, Any]) -> list[SequenceUpdate]:
    ids = fields["input_ids"]
    vector = encode_vector(np.array([len(ids), ids[0], ids[-1], 1], dtype=np.float32))
    return [SequenceUpdate(request_id, finish_reason="stop", embedding=vector)]


def check_error(status: int, answer: dict[str, Any], path: str, parameter: str) -> None:
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    if path == "/v1/messages":
        # Errors of Anthropic's API have no `param`.
        assert parameter in error["message"] or error["message"].startswith("The tool")
    else:
        assert error["param"].split(".")[0] == parameter
        assert error["code"] == "unsupported_parameter"


def remove(answer: str, parameter: str) -> Any:
    """Return a response without the parameter's own value. Return a stream unchanged."""
    if not answer.startswith("{"):
        return answer
    return {name: value for name, value in json.loads(answer).items() if name != parameter}
