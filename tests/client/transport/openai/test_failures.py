from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.client.transport.openai.endpoint import BaseUrl
from trtllm_serve_cli.client.transport.openai.failures import (
    ApiFailure,
    find_error,
    no_server,
    parse_failure,
    request_failed,
)

URL = BaseUrl("http", "h", 80)
_KEYS = st.sampled_from(["error", "detail", "message", "object", "code"])
JSON: st.SearchStrategy[object] = st.deferred(
    lambda: st.none() | st.text() | st.integers() | st.lists(JSON) | st.dictionaries(_KEYS, JSON)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b'{"error": {"message": "no", "type": "t", "param": "n", "code": "c"}}',
            ApiFailure(400, "no", "c", "n"),
        ),
        (b'{"object": "error", "message": "no", "code": 40}', ApiFailure(400, "no", "40")),
        (b'{"error": "no"}', ApiFailure(400, "no")),
        (b'{"detail": "no"}', ApiFailure(400, "no")),
        (b'{"detail": [{"loc": ["n"]}]}', ApiFailure(400, '[{"loc": ["n"]}]')),
        (b'data: {"error": {"message": "no"}}\n\n', ApiFailure(400, "no")),
        (b"<html>", ApiFailure(400, "HTTP 400 Bad Request: <html>")),
        (b"", ApiFailure(400, "HTTP 400 Bad Request")),
        (b"[" * 100_000, ApiFailure(400, "HTTP 400 Bad Request: " + "[" * 200)),
    ],
    ids=lambda value: value[:30].decode() if isinstance(value, bytes) else "",
)
def test_parses_errors_of_all_servers(content: bytes, expected: ApiFailure) -> None:
    assert parse_failure(400, "Bad Request", content) == expected


def test_reads_the_headers_of_errors() -> None:
    busy = parse_failure(429, "", b'{"error": "slow"}', {"Retry-After": "7"})
    assert busy == ApiFailure(429, "slow", retry_after="7")
    moved = parse_failure(308, "Moved", b"<html>", {"Location": "https://h/v1"})
    assert moved == ApiFailure(308, "HTTP 308 Moved: https://h/v1")


@given(JSON)
def test_any_body_is_an_error_or_not(body: object) -> None:
    details = find_error(body)
    assert details is None or all(isinstance(each, str) for each in details)


@pytest.mark.parametrize(
    ("failure", "what", "next_step"),
    [
        (ApiFailure(401, "bad key"), "requires a valid API key", "OPENAI_API_KEY"),
        (ApiFailure(403, "no access"), "does not allow the request", "is allowed to use"),
        (ApiFailure(404, "x", "model_not_found"), "not have a model named 'demo'", "/models"),
        (ApiFailure(404, "The model `demo` does not exist."), "a model named 'demo'", "/models"),
        (ApiFailure(404, "Not Found"), "not provide the requested API", "--api"),
        (ApiFailure(404, "HTTP 404 : no model here"), "not provide the requested API", "--api"),
        (ApiFailure(429, "slow", retry_after="7"), "exceeds a rate limit", "again in 7 s"),
        (ApiFailure(429, "slow"), "exceeds a rate limit", "again later"),
        (ApiFailure(308, "HTTP 308 : https://h"), "redirects requests", "-u"),
        (ApiFailure(503, "loading"), "The request to demo failed", "log"),
        (ApiFailure(400, "n must be 1"), "The request to demo failed", "option"),
    ],
    ids=lambda value: f"{value.status} {value.message}" if isinstance(value, ApiFailure) else "",
)
def test_errors_name_the_cause_and_the_next_step(
    failure: ApiFailure, what: str, next_step: str
) -> None:
    error = request_failed(URL, "demo", failure)
    assert what in error.what
    assert (error.why, next_step in error.next_step) == (failure.message, True)


def test_untrusted_certificates_have_their_own_error() -> None:
    untrusted = ssl.SSLCertVerificationError("self-signed")
    untrusted.verify_message = "self-signed certificate"
    error = no_server(BaseUrl("https", "h", 443), untrusted)
    assert error.what == "The certificate of https://h/v1 could not be verified."
    assert "SSL_CERT_FILE" in error.next_step
