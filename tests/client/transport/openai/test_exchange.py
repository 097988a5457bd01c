"""Requests to the fake server with the OpenAI API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import FakeOpenAI
from tests.samples.certificates import certify
from trtllm_serve_cli.client.ask import generate, stream, stream_in_thread
from trtllm_serve_cli.client.generate import Completion, GenerateRequest
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.openai.endpoint import (
    Api,
    OpenAIEndpoint,
    parse_base_url,
)
from trtllm_serve_cli.client.transport.openai.exchange import OpenAIModel
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed, TimedOut

TEXT = "Machine learning é"
both_apis = pytest.mark.parametrize("api", ["chat", "completions"])
both_ways = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def _model(server: FakeOpenAI, api: Api = "chat", key: str | None = None) -> OpenAIModel:
    return OpenAIModel(OpenAIEndpoint(parse_base_url(server.url), key), "org/demo", api)


def _ask(model: OpenAIModel, prompt: str = "go", **fields: Any) -> Completion:
    return generate(model, model.name, GenerateRequest(prompt, **fields), "openai", 30)


@both_apis
@both_ways
def test_response_has_text_and_counts(server: FakeOpenAI, api: Api, streamed: bool) -> None:
    answer = _ask(_model(server, api), stream=streamed, return_log_probs=True)
    assert (answer.text, answer.num_input_tokens, answer.num_output_tokens) == (TEXT, 4, 3)
    assert (answer.output_log_probs, answer.cum_log_probs) == (((-0.5,) * 3,), (-1.5,))


@both_apis
@both_ways
def test_sequences_are_numbered(server: FakeOpenAI, api: Api, streamed: bool) -> None:
    answer = _ask(_model(server, api), stream=streamed, num_return_sequences=2)
    assert (answer.texts, answer.num_output_tokens) == ((TEXT, TEXT), 6)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_stream_does_not_depend_on_packets(server: FakeOpenAI, size: int, line_end: str) -> None:
    server.slice_bytes, server.line_end, server.has_comments = size, line_end, True
    assert _ask(_model(server), "emoji").text == "é😀漢字\\u00e9 \\n"


def test_pieces_arrive_while_the_response_is_generated(server: FakeOpenAI) -> None:
    with closing(stream(_model(server), "", GenerateRequest("forever"), "openai", 30)) as pieces:
        assert next(pieces).text == "on0 "
    assert server.cancelled.wait(30)


def test_cancelling_disconnects(server: FakeOpenAI) -> None:
    release = threading.Event()
    server.answer = lambda body: iter([str(release.wait(30))])
    cancellation = Cancellation()
    timer = threading.Timer(0.2, cancellation.set)
    timer.start()
    request = GenerateRequest("go")
    with pytest.raises(RequestFailed, match="The request was cancelled"):
        list(stream(_model(server), "", request, "openai", 30, cancellation))
    release.set()
    timer.join()


def test_closing_the_reader_thread_disconnects(server: FakeOpenAI) -> None:
    request = GenerateRequest("forever")
    with closing(stream_in_thread(_model(server), "", request, "openai", 30)) as pieces:
        next(pieces)
    assert server.cancelled.wait(30)


def test_time_limit_ends_the_request(server: FakeOpenAI) -> None:
    server.gap_s = 30
    with pytest.raises(TimedOut, match=r"org/demo did not finish the request within 0.2 s"):
        list(stream(_model(server), "", GenerateRequest("go"), "openai", 0.2))


def test_stop_time_keeps_the_text(server: FakeOpenAI) -> None:
    server.gap_s = 0.01
    answer = _ask(_model(server), "forever", stop_after_ms=300)
    assert (answer.text.startswith("on0 "), answer.was_stopped) == (True, True)


def test_missing_counts_are_unknown(server: FakeOpenAI) -> None:
    server.counts_tokens = False
    assert _ask(_model(server)).num_output_tokens is None


def test_a_server_that_ignores_stream_is_understood(server: FakeOpenAI) -> None:
    whole = b'{"choices": [{"index": 0, "message": {"content": "hi"}}]}'
    server.failure = (200, whole)
    assert _ask(_model(server)).text == "hi"


def test_key_and_request_id_are_headers(server: FakeOpenAI) -> None:
    server.api_key = "secret"
    _ask(_model(server, key="secret"), request_id="mine")
    assert server.headers[0]["X-Request-Id"] == "mine"
    with pytest.raises(RequestFailed, match="requires a valid API key") as refused:
        _ask(_model(server, key="wrong"))
    assert refused.value.why == "Incorrect API key provided."


def test_request_id_must_be_a_header(server: FakeOpenAI) -> None:
    with pytest.raises(BadInput, match="The request id"):
        _ask(_model(server), request_id="a\nb")


def test_rejected_fields_are_replaced_and_remembered(server: FakeOpenAI) -> None:
    server.rejects = frozenset({"max_tokens", "stream_options"})
    model = _model(server)
    assert [_ask(model, max_tokens=9).text for _ in range(2)] == [TEXT, TEXT]
    assert len(server.bodies) == 4  # two rejected requests, and two answered ones
    assert server.bodies[-1]["max_completion_tokens"] == 9


def test_options_of_the_user_are_not_dropped(server: FakeOpenAI) -> None:
    server.rejects = frozenset({"top_k"})
    with pytest.raises(RequestFailed, match="The request to org/demo failed") as refused:
        _ask(_model(server), top_k=3)
    assert refused.value.why == "Unsupported parameter: 'top_k'."


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("error", "The request to org/demo failed"),
        ("cut", "was lost before the response was complete"),
        ("end", "was lost before the response was complete"),
    ],
)
def test_streams_that_break_are_errors(server: FakeOpenAI, kind: str, message: str) -> None:
    server.breaks_after, server.break_kind = 2, kind
    with pytest.raises(RequestFailed, match=message):
        _ask(_model(server))


@pytest.mark.parametrize("content", [b"nope", b"[]", b'{"choices": 3}', b"\xff"])
def test_other_responses_are_invalid(server: FakeOpenAI, content: bytes) -> None:
    server.failure = (200, content)
    with pytest.raises(RequestFailed, match="is invalid"):
        _ask(_model(server))


def test_unreachable_servers_are_reported() -> None:
    endpoint = OpenAIEndpoint(parse_base_url("127.0.0.1:1"))
    with pytest.raises(NoServer, match=r"No server responds at http://127.0.0.1:1/v1\."):
        _ask(OpenAIModel(endpoint, "x"))


def test_tls_requires_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certify(tmp_path, "localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    with FakeOpenAI(certificate=files) as server:
        with pytest.raises(NoServer, match=r"certificate of https://.* could not be verified"):
            _ask(_model(server))
        monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
        assert _ask(_model(server)).text == TEXT
