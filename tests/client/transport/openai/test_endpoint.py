from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.client.transport.openai.endpoint import (
    BaseUrl,
    OpenAIEndpoint,
    parse_api_key,
    parse_base_url,
)
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("https://api.openai.com", "https://api.openai.com/v1"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("https://host:8443/v1beta/openai/", "https://host:8443/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_parses_base_urls(text: str, expected: str) -> None:
    assert str(parse_base_url(text)) == expected


def test_base_url_has_the_parts_of_a_connection() -> None:
    url = parse_base_url("https://[::1]/v1")
    assert url == BaseUrl("https", "::1", 443)
    assert (url.is_tls, url.authority) == (True, "[::1]")
    assert url.path_of("chat") == "/v1/chat/completions"


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "ftp://host", "http://", "http://host:x", "http://me:key@host", "h:0", ":80",
     "http://host?a=b", "http://hö.st", "http://host/a b", "http://host:99999", "http://a..b"],
)  # fmt: skip
def test_refuses_other_addresses(text: str) -> None:
    with pytest.raises(BadInput, match="is not the URL of an OpenAI-compatible server"):
        parse_base_url(text)


@given(st.text(st.characters(codec="latin-1")))
def test_parsed_urls_are_parsed_to_themselves(text: str) -> None:
    try:
        url = parse_base_url(text)
    except BadInput:
        return
    assert parse_base_url(str(url)) == url


def test_key_is_a_header_but_not_in_texts() -> None:
    endpoint = OpenAIEndpoint(parse_base_url("h:1"), parse_api_key(" secret\n"))
    assert endpoint.headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(endpoint)
    assert "Authorization" not in OpenAIEndpoint(parse_base_url("h:1"), parse_api_key(" ")).headers


def test_key_that_is_not_a_header_is_refused_without_printing_it() -> None:
    with pytest.raises(BadInput, match="API key") as refused:
        parse_api_key("sec\nret")
    assert "ret" not in str(refused.value).replace("correct", "")
