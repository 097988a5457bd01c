from __future__ import annotations

import pytest

from trtllm_serve_cli.client.address import join_address, parse_address, split_address
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8001", "127.0.0.1:8001"),
        ("http://gpu-box:8000/", "gpu-box:8000"),
        ("grpc://gpu-box:8001", "gpu-box:8001"),
        ("[::1]:8001", "[::1]:8001"),
        ("http://127.0.0.1:8000/v2/models/demo/generate", "127.0.0.1:8000"),
        ("http://localhost:8002/metrics", "localhost:8002"),
    ],
)
def test_parses_host_and_port(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-box",
        ":8001",
        "a:port",
        "a:99999",
        "a:1/x",
        "a:1?x",
        "u@a:1",
        "[::1",
        "a..b:1",
        f"{'a' * 64}:1",
    ],
)
def test_rejects_other_addresses(text: str) -> None:
    with pytest.raises(BadInput, match="is not a server address") as raised:
        parse_address(text)
    assert "HOST:PORT" in raised.value.why


def test_only_ipv6_hosts_have_brackets() -> None:
    assert (join_address("::1", 8001), join_address("box", 1)) == ("[::1]:8001", "box:1")


def test_split_removes_brackets() -> None:
    assert (split_address("[::1]:8001"), split_address("box:1")) == (("::1", 8001), ("box", 1))


@pytest.mark.parametrize(
    ("text", "next_step"),
    [("http://a:9000/v1", "`-i openai -u http://a:9000/v1`"), ("https://a:8000", "HOST:PORT")],
)
def test_urls_of_other_servers_are_refused(text: str, next_step: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_address(text)
    assert next_step in raised.value.next_step
