"""Asking a text model: piece by piece, or for the whole answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import closing

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import (
    Completion,
    GenerateRequest,
    Interface,
    Piece,
    summarize_pieces,
)
from trtllm_serve_cli.errors import RequestFailed


def stream(
    endpoint: Endpoint,
    model: str,
    request: GenerateRequest,
    interface: Interface = "grpc",
    timeout_s: float | None = None,
) -> Generator[Piece, None, None]:
    """The pieces of the answer as they arrive: parts of it, or all at once if not `request.stream`.

    Closing the iterator, or an exception (`KeyboardInterrupt` too) while it waits, cancels the
    request on the server: wrap it in `contextlib.closing`. `timeout_s` is for the whole answer.
    The request is sent when the first piece is asked for. From then on raises `NoServer`,
    `RequestFailed`, and `BadInput` for a request that no tensor can hold.
    """
    # Imported here, ahead of the sending: gRPC takes a quarter of a second that HTTP need not pay
    # and that must not count as the server's.
    if interface == "grpc":
        from trtllm_serve_cli.client.over_grpc import stream_grpc

        return stream_grpc(endpoint.grpc, model, request, timeout_s)
    from trtllm_serve_cli.client.over_http import stream_http

    return stream_http(endpoint.http, model, request, timeout_s)


def generate(
    endpoint: Endpoint,
    model: str,
    request: GenerateRequest,
    interface: Interface = "grpc",
    timeout_s: float | None = None,
    stop: threading.Event | None = None,
) -> Completion:
    """The whole answer; raises as `stream` does.

    Setting `stop` from another thread cancels the request at the next piece: with `request.stream`
    that is soon.
    """
    pieces = []
    with closing(stream(endpoint, model, request, interface, timeout_s)) as arriving:
        started_s = time.monotonic()
        for piece in arriving:
            if stop is not None and stop.is_set():
                raise RequestFailed("The request was cancelled.", why="the others were stopped too")
            pieces.append(piece)
    return summarize_pieces(pieces, started_s, time.monotonic())
