"""Requests through `/v2` whose client disconnects before the response is complete."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.fake_triton import Triton, serving_gateway, serving_triton
from tests.gateway.fakes import FakeBackend, LoadedRegistry, make_model
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.app import build_app
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel

GENERATE = "/v2/models/demo/generate"
INFER = "/v2/models/demo/infer"


class StallingTriton:
    """Stands for the client of a Triton that sends the headers of a response, but not the body."""

    def __init__(self) -> None:
        self.is_reading = asyncio.Event()
        self.bodies: list[bytes] = []

    async def send(self, *arguments: Any) -> Any:
        self.bodies.append(arguments[-1])
        return SimpleNamespace(
            content_type="application/json", status=200, headers={}, close=lambda: None
        )

    async def read(self, response: Any) -> bytes:
        self.is_reading.set()
        await asyncio.Event().wait()
        return b""


def disconnect(
    path: str, body: bytes, inputs: frozenset[str], other_id: str = "other"
) -> tuple[list[Any], str]:
    """Send a request while another one with `other_id` runs, and disconnect during the response.

    Return the bodies that Triton receives, and the gateway's metrics. `inputs` are the inputs of
    the model.
    """

    async def run() -> tuple[list[Any], str]:
        config = GatewayConfig((ServedModel("demo", "demo", Endpoint(http="127.0.0.1:1")),))
        info = ModelInfo("demo", inputs=inputs)
        app = build_app(config, LoadedRegistry(config, make_model(FakeBackend(), info=info)))
        app.state.triton = triton = StallingTriton()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await triton.is_reading.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [],
        }  # fmt: skip
        with app.state.client_ids.hold("demo", other_id):
            await app(scope, receive, send)
        return [*map(json.loads, triton.bodies)], str(app.state.metrics.render().decode())

    return asyncio.run(run())


def test_client_that_disconnects_during_the_response_is_recorded() -> None:
    _, metrics = disconnect(GENERATE, b"{}", frozenset())
    assert 'tllm_gateway_http_responses_total{status="499"} 1.0' in metrics


def test_request_of_a_client_that_disconnects_is_stopped() -> None:
    (sent, stop), _ = disconnect(GENERATE, b'{"max_tokens": 9}', frozenset({"stop"}))
    assert stop == {**sent, "stop": True}
    assert sent["max_tokens"] == 9 and sent["id"].startswith("gateway-")


def test_request_with_the_id_of_the_client_is_stopped() -> None:
    body = {"id": "1", "max_tokens": 9, "stream": False}
    for path in (GENERATE, GENERATE + "_stream"):
        sent, _ = disconnect(path, json.dumps(body).encode(), frozenset({"stop"}))
        assert sent == [body, {**body, "stop": True}]


def test_request_is_not_stopped_if_another_one_has_its_id() -> None:
    body = {"id": "1", "max_tokens": 9}
    sent, _ = disconnect(GENERATE, json.dumps(body).encode(), frozenset({"stop"}), "1")
    assert sent == [body]


def test_id_of_a_stream_is_in_use_until_its_end() -> None:
    shared = []

    class Watching(Triton):
        def do_POST(self) -> None:
            with ids.hold("demo", "1") as held:
                shared.append(ids.is_shared(held))
                super().do_POST()

    stop = frozenset({"stop"})
    with serving_triton(Watching) as address, serving_gateway(address, inputs=stop) as client:
        app: Any = client.app
        ids = app.state.client_ids
        body = {"id": "1", "text_input": "a", "stream": True}
        for _ in range(2):
            assert client.post(GENERATE + "_stream", json=body).text.startswith("data: ")
        with ids.hold("demo", "1") as held:
            assert not ids.is_shared(held)
    assert shared == [True, True]


def test_infer_request_of_a_client_that_disconnects_is_stopped() -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    body = json.dumps({"inputs": [text]}).encode()
    (sent, stop), _ = disconnect(INFER, body, frozenset({"stop"}))
    added = {"name": "stop", "datatype": "BOOL", "shape": [1], "data": [True]}
    assert (sent["inputs"], stop["inputs"]) == ([text], [added, text])
    assert sent["id"] == stop["id"] and sent["id"].startswith("gateway-")


@pytest.mark.parametrize(
    ("path", "body", "inputs"),
    [
        (INFER, {"inputs": []}, {"stop"}),
        # Triton would run the request again.
        (GENERATE, {"max_tokens": 9}, {"text_input"}),
    ],
    ids=["infer without inputs", "model without stop"],
)
def test_other_requests_are_not_changed_or_stopped(
    path: str, body: dict[str, Any], inputs: set[str]
) -> None:
    sent, _ = disconnect(path, json.dumps(body).encode(), frozenset(inputs))
    assert sent == [body]
