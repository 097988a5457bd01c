"""Waiting for a place to run, with requests that are driven step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel


class Request:
    """A request to the application, whose client can disconnect."""

    def __init__(self, app: Starlette, **body: Any) -> None:
        self.messages: list[Any] = []
        self._left = asyncio.Event()
        self._body = json.dumps({"model": "demo", "prompt": "x", "stream": True, **body}).encode()
        self._is_read = False
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    async def disconnect(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 10)


async def wait_until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), 10)


def run(test: Callable[[Starlette, FakeBackend], Awaitable[None]], **config: Any) -> None:
    """Run `test` with a gateway whose engine generates tokens until the request is cancelled."""
    backend = FakeBackend(is_endless=True)
    served = ServedModel("demo", "demo", Endpoint(http="127.0.0.1:1"))
    settings = GatewayConfig((served,), **config)
    app = build_app(settings, LoadedRegistry(settings, make_model(backend)))
    asyncio.run(test(app, backend))


def test_requests_run_in_the_order_of_their_arrival() -> None:
    async def test(app: Starlette, backend: FakeBackend) -> None:
        limits = app.state.limits
        first = Request(app, max_tokens=5)
        await wait_until(lambda: first.status == 200)
        second = Request(app, max_tokens=6)
        await wait_until(lambda: limits.num_waiting == 1)
        third = Request(app, max_tokens=7)
        await wait_until(lambda: limits.num_waiting == 2)
        assert len(backend.submitted) == 1
        await first.disconnect()
        await wait_until(lambda: second.status == 200)
        assert (limits.num_in_flight, limits.num_waiting, third.status) == (1, 1, None)
        await second.disconnect()
        await wait_until(lambda: third.status == 200)
        await third.disconnect()
        assert (limits.num_in_flight, limits.num_waiting) == (0, 0)
        assert [each["max_new_tokens"] for each in backend.submitted] == [5, 6, 7]

    run(test, max_in_flight=1, max_waiting=2)


def test_disconnected_client_leaves_the_queue() -> None:
    async def test(app: Starlette, backend: FakeBackend) -> None:
        limits = app.state.limits
        first = Request(app)
        await wait_until(lambda: first.status == 200)
        for stream in (True, False):
            second = Request(app, stream=stream)
            await wait_until(lambda: limits.num_waiting == 1)
            await second.disconnect()
            assert (limits.num_in_flight, limits.num_waiting) == (1, 0)
        assert len(backend.submitted) == 1
        await first.disconnect()

    run(test, max_in_flight=1, max_waiting=1)


def test_full_queue_rejects_requests() -> None:
    async def test(app: Starlette, backend: FakeBackend) -> None:
        running = Request(app)
        await wait_until(lambda: running.status == 200)
        waiting = Request(app)
        await wait_until(lambda: app.state.limits.num_waiting == 1)
        rejected = Request(app)
        await asyncio.wait_for(rejected.task, 10)
        assert rejected.status == 429
        assert (b"retry-after", b"1") in rejected.messages[0]["headers"]
        assert json.loads(rejected.messages[1]["body"])["error"]["code"] == "queue_full"
        text = app.state.metrics.render().decode()
        assert 'tllm_gateway_rejected_requests_total{key="",reason="queue_full"} 1.0' in text
        assert "tllm_gateway_requests_in_flight 1.0" in text
        assert "tllm_gateway_requests_waiting 1.0" in text
        await waiting.disconnect()
        await running.disconnect()

    run(test, max_in_flight=1, max_waiting=1)


def test_cancelled_requests_of_a_stopping_server_release_their_place() -> None:
    async def test(app: Starlette, backend: FakeBackend) -> None:
        requests = [Request(app) for _ in range(3)]
        limits = app.state.limits
        await wait_until(lambda: limits.num_waiting == 2 and requests[0].status == 200)
        for request in requests:
            request.task.cancel()
        await asyncio.gather(*(each.task for each in requests), return_exceptions=True)
        assert (limits.num_in_flight, limits.num_waiting) == (0, 0)
        assert len(backend.cancelled) == len(backend.submitted)

    run(test, max_in_flight=1, max_waiting=2)


@pytest.mark.parametrize("path", ["/v1/completions", "/v2/models/demo/generate"])
def test_client_that_disconnects_while_it_sends_the_body_is_recorded(path: str) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    async def test(app: Starlette, backend: FakeBackend) -> None:
        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        await app(scope, receive, send)
        metrics = app.state.metrics.render().decode()
        assert 'tllm_gateway_http_responses_total{status="499"} 1.0' in metrics
        assert backend.submitted == []

    run(test)
