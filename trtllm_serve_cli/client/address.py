"""Parse server addresses (`host:port`) that users enter."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from trtllm_serve_cli.errors import BadInput

# The paths of Triton's HTTP and metrics URLs, which `tllm start` prints.
_PATHS = re.compile(r"/v2(/[\w./-]*)?|/metrics/?")


def parse_address(text: str) -> str:
    """Return the address in `text` as `host:port`, without a scheme or a path.

    `text` may be a URL that `tllm start` prints, with a path below /v2 or the path /metrics. An
    IPv6 host is enclosed in brackets. Raise `BadInput` if `text` is not an address with a port, or
    if it is the URL of an OpenAI-compatible API or of an HTTPS server.
    """
    refusal = BadInput(
        f"{text!r} is not a server address.",
        why="a server address has the form HOST:PORT",
        next_step="pass an address such as 127.0.0.1:8001 for gRPC, 127.0.0.1:8000 for HTTP, or "
        "127.0.0.1:8002 for metrics",
    )
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
        check_host(host or "")
    except ValueError as error:
        raise refusal from error
    if parts.scheme == "https":
        raise BadInput(
            f"{text} is not the address of a Triton server.",
            why="Triton does not serve HTTPS",
            next_step="pass HOST:PORT, grpcs://HOST:PORT for gRPC with TLS, or "
            "`-i openai -u https://HOST/v1` for an OpenAI-compatible server",
        )
    if host and parts.path.startswith("/v1"):
        raise BadInput(
            f"{text} is the URL of an OpenAI-compatible API.",
            why="the command sends requests to Triton's gRPC or HTTP API",
            next_step=f"pass `-i openai -u {text}`, or the address of Triton's gRPC or HTTP port",
        )
    if _PATHS.fullmatch(parts.path):
        parts = parts._replace(path="")
    if not host or not port or parts.path.strip("/") or parts.query or parts.username:
        raise refusal
    return join_address(host, port)


def check_host(host: str) -> None:
    """Raise `ValueError` if `host` has an empty or too long part, which cannot be resolved."""
    host.encode("idna")


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into the host without brackets and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
