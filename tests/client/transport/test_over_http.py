"""Responses over HTTP that do not follow Triton's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from trtllm_serve_cli.client.ask import embed, generate
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.client.server import fetch_versions
from trtllm_serve_cli.client.transport.tensors import INPUTS
from trtllm_serve_cli.errors import RequestFailed

INFO = ModelInfo("ensemble", inputs=frozenset(INPUTS))


@contextmanager
def serving(body: str, num_requests: int = 1) -> Iterator[Endpoint]:
    """Send `body` as the response to each request and yield the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=lambda: [server.handle_request() for _ in range(num_requests)])
        thread.start()
        yield Endpoint(http=f"127.0.0.1:{server.server_port}")
        thread.join()


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[1]",
        pytest.param('{"a":' * 100_000, id="nested"),
        '{"text_output": 5}',
        '{"text_output": ["a", null]}',
        '{"text_output": "a", "sequence_index": "b"}',
        '{"text_output": "a", "num_output_tokens": "b"}',
        '{"text_output": "a", "logprobs": "{"}',
        '{"text_output": "a", "logprobs": "[{}]"}',
        '{"text_output": "a", "num_input_tokens": "b"}',
        '{"text_output": "a", "cumulative_logprob": "b"}',
        '{"text_output": "a", "kv_cache_reused_blocks": "b"}',
    ],
)
def test_invalid_event_is_reported(data: str) -> None:
    with serving(f"data: {data}\n\n") as endpoint, pytest.raises(RequestFailed) as raised:
        request = GenerateRequest("hi", return_log_probs=True, return_perf_metrics=True)
        generate(endpoint, "m", request, "http", 60, info=INFO)
    assert raised.value.what == f"The response from {endpoint.http} is invalid."


@pytest.mark.parametrize(
    "body",
    ['{"parameters": [1]}', '{"input": [{}]}', '{"input": 1}', '{"max_batch_size": Infinity}'],
)
def test_invalid_configuration_is_reported(body: str) -> None:
    with serving(body) as endpoint, pytest.raises(RequestFailed) as raised:
        fetch_model_config(endpoint, "m", "http")
    assert raised.value.why == "the response is not a model configuration"


def test_invalid_embedding_settings_are_ignored() -> None:
    body = json.dumps({"parameters": {"embedding": {"string_value": "[" * 100_000}}})
    with serving(body) as endpoint:
        assert fetch_model_config(endpoint, "m", "http").embedding is None


@pytest.mark.parametrize("versions", ["null", "5", "[1, 2]", "[[]]"])
def test_invalid_versions_are_reported(versions: str) -> None:
    body = f'{{"versions": {versions}}}'
    with serving(body, num_requests=2) as endpoint, pytest.raises(RequestFailed) as raised:
        fetch_versions(endpoint, "m", "http", 60)
    assert raised.value.why == "the response does not contain a valid list of versions"


@pytest.mark.parametrize("value", ["a", None, []])
def test_invalid_embedding_is_reported(value: object) -> None:
    values = {"embedding": [value], "num_input_tokens": [1]}
    outputs = [{"name": name, "data": data} for name, data in values.items()]
    body = json.dumps({"outputs": outputs})
    with serving(body) as endpoint, pytest.raises(RequestFailed) as raised:
        embed(endpoint, "m", "hi", "http", 60)
    assert raised.value.what == "m returned an invalid embedding."
