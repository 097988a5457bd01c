"""Determine from a port's response whether it serves HTTP or gRPC."""

from __future__ import annotations

import socket
from typing import Literal

from trtllm_serve_cli.client.address import split_address

_TIMEOUT_S = 2.0
# A request that every HTTP/1 server answers, at least with an error.
_REQUEST = b"GET /v2/health/live HTTP/1.0\r\n\r\n"


def probe_interface(address: str) -> Literal["grpc", "http"] | None:
    """Return the interface that the port serves, or None if the port does not respond.

    A gRPC server responds with an HTTP/2 frame, or with a TLS alert.
    """
    try:
        with socket.create_connection(split_address(address), timeout=_TIMEOUT_S) as connection:
            connection.sendall(_REQUEST)
            answer = connection.recv(5)
    except OSError:
        return None
    if not answer:
        return None
    return "http" if answer == b"HTTP/" else "grpc"
