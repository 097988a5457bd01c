"""Requests with long texts, which must not stop the event loop or avoid the limits."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from tests.gateway.fakes import (
    FakeBackend,
    LetterTokenizer,
    LoadedRegistry,
    generates,
    make_model,
)
from tests.gateway.live_server import TEMPLATE
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate

LONG = "a" * 5000
MESSAGES = [{"role": "user", "content": LONG}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": LONG},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": LONG},
    "/tokenize": {"prompt": LONG},
    "/detokenize": {"tokens": [97] * 2000},
}


class PausingTokenizer(LetterTokenizer):
    """A tokenizer that does not return from a call with a long text until `resume` is set."""

    def __init__(self) -> None:
        self.is_paused, self.resume = threading.Event(), threading.Event()
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        self._pause(text)
        return super().encode(text)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        self._pause(token_ids)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _pause(self, value: Any) -> None:
        if len(value) > 1000:
            self.is_paused.set()
            assert self.resume.wait(10)


class Gateway:
    def __init__(self, max_seq_len: int = 10_000, reply: str = "Hello!") -> None:
        self.tokenizer = PausingTokenizer()
        info = ModelInfo("demo", max_seq_len=max_seq_len, engine_kind="openvino", vocab_size=2000)
        model = make_model(
            FakeBackend(generates(reply)), info=info, template=ChatTemplate(TEMPLATE)
        )
        model = dataclasses.replace(model, tokenizer=self.tokenizer)
        config = GatewayConfig((ServedModel("demo", "demo", Endpoint()),))
        self.app: Starlette = build_app(config, LoadedRegistry(config, model))
        transport = httpx.ASGITransport(self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json={"model": "demo", **body})


def run(gateway: Gateway, test: Callable[[], Awaitable[None]]) -> None:
    try:
        asyncio.run(asyncio.wait_for(test(), 20))
    finally:
        gateway.tokenizer.resume.set()


@pytest.mark.parametrize("path", REQUESTS)
def test_other_requests_are_served_while_a_long_text_is_processed(path: str) -> None:
    gateway = Gateway()

    async def test() -> None:
        long = asyncio.create_task(gateway.post(path, **REQUESTS[path]))
        await asyncio.to_thread(gateway.tokenizer.is_paused.wait, 10)
        short = await gateway.post("/v1/completions", prompt="Hi", stream=True)
        assert short.text.endswith("data: [DONE]\n\n")
        assert not long.done()
        # The long request counts towards the limits although the engine has not received it.
        assert gateway.app.state.limits.num_in_flight == 1
        gateway.tokenizer.resume.set()
        assert (await long).status_code == 200
        assert gateway.app.state.limits.num_in_flight == 0

    run(gateway, test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5000}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
def test_other_requests_are_served_while_reasoning_tokens_are_counted(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    gateway = Gateway(reply=f"<think>{'a' * 2000}</think>Hi")

    async def test() -> None:
        long = asyncio.create_task(gateway.post(path, **body, stream=stream))
        await asyncio.to_thread(gateway.tokenizer.is_paused.wait, 10)
        short = await gateway.post("/v1/completions", prompt="Hi", max_tokens=2)
        assert short.json()["choices"][0]["text"] == "<t"
        assert not long.done()
        gateway.tokenizer.resume.set()
        assert '_tokens":2000' in (await long).text

    run(gateway, test)


@pytest.mark.parametrize("path", REQUESTS)
def test_text_that_cannot_fit_is_not_encoded(path: str) -> None:
    """The longest tokens have 128 characters, so 10 tokens contain at most 1280 characters."""
    gateway = Gateway(max_seq_len=10)

    async def test() -> None:
        response = await gateway.post(path, **REQUESTS[path])
        error = response.json()["error"]
        assert response.status_code == 400
        assert "maximum context length is 10 tokens" in error["message"]
        param = next(iter(REQUESTS[path]))
        assert error.get("param", param) == param
        assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
        assert gateway.tokenizer.texts == []

    run(gateway, test)


def test_bad_words_are_limited() -> None:
    gateway = Gateway()

    async def test() -> None:
        response = await gateway.post("/v1/completions", prompt="Hi", bad_words=["a"] * 5000)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "bad_words"

    run(gateway, test)
