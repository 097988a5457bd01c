"""Parse server addresses (`host:port`) that users enter."""

from __future__ import annotations

from urllib.parse import urlsplit

from trtllm_serve_cli.errors import BadInput


def parse_address(text: str) -> str:
    """Return the address in `text` as `host:port`, without a scheme or a trailing slash.

    An IPv6 host is enclosed in brackets. Raise `BadInput` if `text` is not an address with a port.
    """
    refusal = BadInput(
        f"{text!r} is not a server address.",
        why="a server address has the form HOST:PORT",
        next_step="pass an address such as -u 127.0.0.1:8001 for gRPC, "
        "or -i http -u 127.0.0.1:8000 for HTTP",
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
