"""Streams to clients of a real HTTP server, whose chunks callbacks write to the connection."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, generates, make_client, read_events
from tests.gateway.live_server import INFO, serve
from tests.waiting import wait_until
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.runtime.engine import SequenceUpdate

# More than the buffers of a connection can hold, as one event per character.
TEXT = "".join(chr(97 + each % 26) for each in range(3000))
BODY = {"model": "demo", "prompt": "x", "max_tokens": len(TEXT), "stream": True}


class CountingBackend(FakeBackend):
    """A backend that counts the updates that it has delivered."""

    num_delivered = 0

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        def deliver(update: SequenceUpdate) -> None:
            on_update(update)
            self.num_delivered += 1

        return super().submit(fields, deliver)


def _request(url: str, body: Mapping[str, Any]) -> http.client.HTTPConnection:
    """Send a request without reading the response. The kernel buffers little of it."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sock.connect((host, int(port)))
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection


def _read(connection: http.client.HTTPConnection) -> list[dict[str, Any]]:
    """Return the chunks of the stream, and check its end."""
    *events, end = read_events(connection.getresponse().read().decode())
    connection.close()
    assert end == "[DONE]"
    return [json.loads(each) for each in events]


def _join(chunks: list[dict[str, Any]]) -> str:
    return "".join(each["choices"][0]["text"] for each in chunks)


def test_chunks_are_those_of_any_asgi_server() -> None:
    body = {**BODY, "max_tokens": 40, "stop": ["jkl"], "logprobs": 0, "n": 2}
    reply = generates(TEXT)
    with serve(FakeBackend(reply), info=INFO) as url:
        chunks = _read(_request(url, body))
    with make_client(FakeBackend(reply), info=INFO) as client:
        *events, _ = read_events(client.post("/v1/completions", json=body).text)
    others = [json.loads(each) for each in events]
    for index in (0, 1):
        ours, expected = (
            [each["choices"][0] for each in every if each["choices"][0]["index"] == index]
            for every in (chunks, others)
        )
        assert "".join(each["text"] for each in ours) == "abcdefghi"
        assert ours[-1]["finish_reason"] == expected[-1]["finish_reason"] == "stop"
        assert _tokens(ours) == _tokens(expected)


def _tokens(choices: list[dict[str, Any]]) -> list[str]:
    return [token for each in choices for token in (each["logprobs"] or {"tokens": []})["tokens"]]


def test_a_client_that_reads_slowly_receives_the_whole_text() -> None:
    backend = CountingBackend(generates(TEXT))
    with serve(backend, send_buffer_bytes=4096, info=INFO) as url:
        connection = _request(url, BODY)
        wait_until(lambda: backend.num_delivered > len(TEXT))
        chunks = _read(connection)
    assert _join(chunks) == TEXT
    # The text that arrived while the connection was blocked is merged.
    assert len(chunks) < len(TEXT)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_client_that_leaves_cancels_its_request() -> None:
    backend = CountingBackend(generates(TEXT), is_endless=True)
    with serve(backend, info=INFO) as url:
        connection = _request(url, BODY)
        connection.getresponse().read(1000)
        connection.sock.close()
        connection.close()
        wait_until(lambda: backend.cancelled == [1])


def test_a_client_that_does_not_read_is_disconnected(capfd: pytest.CaptureFixture[str]) -> None:
    backend = CountingBackend(generates(TEXT), is_endless=True)
    config = {"send_timeout_s": 0.1}
    with serve(backend, send_buffer_bytes=4096, config=config, info=INFO) as url:
        connection = _request(url, BODY)
        wait_until(lambda: backend.cancelled == [1])
        # The rest of the stream, which the kernel has buffered, has no end.
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            connection.getresponse().read()
        connection.close()
    assert "Exception in ASGI application" not in capfd.readouterr().err
