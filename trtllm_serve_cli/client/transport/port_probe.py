"""Detect whether a port serves HTTP or gRPC."""

from __future__ import annotations

import socket
import ssl
from typing import Literal

from trtllm_serve_cli.client.address import split_address
from trtllm_serve_cli.errors import BadInput

_TIMEOUT_S = 2.0
# Every HTTP/1 server responds to this request, at least with an error.
_REQUEST = b"GET /v2/health/live HTTP/1.0\r\n\r\n"
_TLS_ALERT = b"\x15"


def probe_interface(address: str) -> Literal["grpc", "http"] | None:
    """Return the interface that the port serves, or None if the port does not respond.

    A gRPC server responds with an HTTP/2 frame. Raise `BadInput` if the port uses TLS, because an
    address without the grpcs scheme selects a connection without TLS.
    """
    try:
        answer = _ask(address)
    except ConnectionResetError:
        answer = b""
    except OSError:
        return None
    if answer.startswith(b"HTTP/"):
        return "http"
    # A TLS server closes the connection after a request without TLS. It may send an alert first.
    if answer[:1] in (b"", _TLS_ALERT) and _accepts_tls(address):
        raise BadInput(
            f"The server at {address} requires TLS.",
            why="requests to `-u HOST:PORT` are sent without TLS",
            next_step=f"pass `-u grpcs://{address} --tls-ca FILE`, omit -u if `tllm start` "
            f"started the server, or pass `-i openai -u https://{address}/v1` for an "
            "OpenAI-compatible API",
        )
    return "grpc" if answer else None


def _ask(address: str) -> bytes:
    with socket.create_connection(split_address(address), timeout=_TIMEOUT_S) as connection:
        connection.sendall(_REQUEST)
        return connection.recv(5)


def _accepts_tls(address: str) -> bool:
    """Return whether a TLS handshake succeeds. The certificate is not verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection(split_address(address), timeout=_TIMEOUT_S) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:  # `ssl.SSLError` is an `OSError`
        return False
