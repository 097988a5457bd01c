"""`host:port` as people write it."""

from __future__ import annotations

from urllib.parse import urlsplit

from trtllm_serve_cli.errors import BadInput


def parse_address(text: str) -> str:
    """`text` as a plain `host:port`; a scheme and a trailing slash are dropped.

    Raises `BadInput` for anything else. An IPv6 host stands in brackets.
    """
    refusal = BadInput(
        f"{text!r} is not the address of a server.",
        why="an address is HOST:PORT",
        next_step="write it as in -u 127.0.0.1:8001 (gRPC) or -i http -u 127.0.0.1:8000",
    )
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise refusal from error
    if not host or not port or parts.path.strip("/") or parts.query or parts.username:
        raise refusal
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of a `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
