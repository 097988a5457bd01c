"""Parse server addresses (`host:port`) that users enter."""

from __future__ import annotations

from urllib.parse import urlsplit

from trtllm_serve_cli.errors import BadInput


def parse_address(text: str) -> str:
    """Return `text` as a plain `host:port`, without scheme and trailing slash.

    Put an IPv6 host in brackets. Raise `BadInput` if `text` is not an address with a port.
    """
    refusal = BadInput(
        f"{text!r} is not the address of a server.",
        why="an address is HOST:PORT",
        next_step="write it as -u 127.0.0.1:8001 (gRPC) or -i http -u 127.0.0.1:8000",
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
    """Split a `host:port` into the host, without brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
