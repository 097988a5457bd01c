"""Responses over HTTP that do not follow Triton's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.errors import RequestFailed

INFO = ModelInfo("m", inputs=frozenset({"text_input", "sampling_parameters", "return_logprobs"}))


@contextmanager
def serving(body: str) -> Iterator[Endpoint]:
    """Serve one response and yield the server's address."""

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
        thread = Thread(target=server.handle_request)
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
    ],
)
def test_invalid_event_is_reported(data: str) -> None:
    with serving(f"data: {data}\n\n") as endpoint, pytest.raises(RequestFailed) as raised:
        generate(endpoint, "m", GenerateRequest("hi"), "http", 60, info=INFO)
    assert raised.value.what == f"The response from {endpoint.http} is invalid."


@pytest.mark.parametrize("body", ['{"parameters": [1]}', '{"input": [{}]}', '{"input": 1}'])
def test_invalid_configuration_is_reported(body: str) -> None:
    with serving(body) as endpoint, pytest.raises(RequestFailed) as raised:
        fetch_model_config(endpoint, "m", "http")
    assert raised.value.why == "the response is not a model configuration"
