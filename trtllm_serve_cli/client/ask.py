"""Request text or an embedding from a model on a server.

Text is streamed in pieces or returned as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import (
    Completion,
    GenerateRequest,
    Interface,
    Piece,
    TritonInterface,
    summarize_pieces,
)
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config, import_transport
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.errors import RequestFailed, TimedOut, TllmError

# Maximum time to wait for the reader thread after the caller has stopped reading the response.
_CLOSE_TIMEOUT_S = 2.0


class Responder(Protocol):
    """A source of responses that `stream` and `generate` accept instead of an `Endpoint`.

    Examples are an engine without a server, a model on an OpenAI-compatible server, and a
    `RowBatch`, which sends several prompts to Triton in one request.
    """

    def stream(
        self, request: GenerateRequest, timeout_s: float | None, cancellation: Cancellation
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of the response as they arrive."""


def stream(
    endpoint: Endpoint | Responder,
    model: str,
    request: GenerateRequest,
    interface: Interface = "grpc",
    timeout_s: float | None = None,
    cancellation: Cancellation | None = None,
    info: ModelInfo | None = None,
) -> Generator[Piece, None, None]:
    """Yield the pieces of the response as they arrive.

    If `request.stream` is false, the text of a sequence arrives when the sequence is complete. The
    request is sent when the caller reads the first piece.

    Wrap the iterator in `contextlib.closing`, because closing the iterator cancels the request on
    the server, except for a non-streaming request over HTTP. If the whole response takes longer
    than `timeout_s`, raise `TimedOut`. If it takes longer than `request.stop_after_ms`, end the
    response without an error. If both are set, the shorter limit applies.

    `endpoint` is a Triton server or another source of responses. `model`, `interface` and `info`
    apply only to Triton servers. `info` is the model's configuration. If `info` is None, the
    configuration is fetched from the server before the request is sent.

    Raise `NoServer` if the server cannot be reached, or `RequestFailed` if the request fails or is
    cancelled through `cancellation`. Raise `BadInput` if a value does not fit its tensor, or if the
    model or the interface does not support an input.
    """
    cancellation = cancellation or Cancellation()
    stop_s = None if request.stop_after_ms is None else request.stop_after_ms / 1000
    is_stopping = stop_s is not None and (timeout_s is None or stop_s < timeout_s)
    limit_s = stop_s if is_stopping else timeout_s
    # Import gRPC only if it is used, because the import takes 0.25 s. Import it before the request
    # is sent, so that the import does not add to the measured latency.
    if not isinstance(endpoint, Endpoint):
        pieces = endpoint.stream(request, limit_s, cancellation)
    elif interface == "grpc":
        info = info or fetch_model_config(endpoint, model, interface)
        from trtllm_serve_cli.client.transport.over_grpc import stream_grpc

        pieces = stream_grpc(endpoint, info, request, limit_s, cancellation)
    else:
        info = info or fetch_model_config(endpoint, model, "http")
        from trtllm_serve_cli.client.transport.over_http import stream_http

        pieces = stream_http(endpoint.http, info, request, limit_s, cancellation)
    pieces = _translate_cancellation(pieces, cancellation)
    is_server = isinstance(endpoint, Endpoint)
    if is_server and request.stream and info is not None and info.accumulates_tokens:
        pieces = _keep_new_text(pieces)
    return _mark_stopped(pieces) if is_stopping else pieces


def stream_in_thread(
    endpoint: Endpoint | Responder,
    model: str,
    request: GenerateRequest,
    interface: Interface = "grpc",
    timeout_s: float | None = None,
    info: ModelInfo | None = None,
) -> Generator[Piece, None, None]:
    """Yield the same pieces as `stream`, but read the response in another thread.

    Commands call this function from the main thread, where Python raises `KeyboardInterrupt`. An
    interrupt inside gRPC could leave its locks held, so gRPC runs in another thread.
    """
    cancellation = Cancellation()
    pieces = stream(endpoint, model, request, interface, timeout_s, cancellation, info)
    arrived: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        end: BaseException | None = None
        try:
            with closing(pieces):
                for piece in pieces:
                    arrived.put(piece)
        except BaseException as error:  # raised again in the caller's thread
            end = error
        arrived.put(end)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while isinstance(item := arrived.get(), Piece):
            yield item
        if item is not None:
            raise item
    finally:
        cancellation.set()
        reader.join(_CLOSE_TIMEOUT_S)


def generate(
    endpoint: Endpoint | Responder,
    model: str,
    request: GenerateRequest,
    interface: Interface = "grpc",
    timeout_s: float | None = None,
    cancellation: Cancellation | None = None,
    info: ModelInfo | None = None,
) -> Completion:
    """Return the whole response. Raise the same exceptions as `stream`."""
    with closing(
        stream(endpoint, model, request, interface, timeout_s, cancellation, info)
    ) as pieces:
        started_s = time.monotonic()
        return summarize_pieces(list(pieces), started_s, time.monotonic())


def _translate_cancellation(
    pieces: Generator[Piece, None, None], cancellation: Cancellation
) -> Generator[Piece, None, None]:
    if cancellation.is_set:
        raise error_mapping.cancelled()
    try:
        yield from pieces
    except TllmError as error:
        # Cancelling aborts the call, which the transport reports as a server failure. Replace that
        # error, because the server has not failed.
        if cancellation.is_set:
            raise error_mapping.cancelled() from error
        raise


def _keep_new_text(pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
    """Convert accumulated text to increments.

    Each piece in `pieces` contains the whole text of the response so far.
    """
    texts: dict[int, str] = {}
    for piece in pieces:
        previous = texts.get(piece.sequence_index, "")
        texts[piece.sequence_index] = piece.text
        yield replace(piece, text=piece.text.removeprefix(previous))


def _mark_stopped(pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
    try:
        yield from pieces
    except TimedOut:
        yield Piece("", time.monotonic(), was_stopped=True)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text embedding and the number of tokens in the text."""

    values: tuple[float, ...]
    num_input_tokens: int


def embed(
    endpoint: Endpoint,
    model: str,
    text: str,
    interface: TritonInterface = "grpc",
    timeout_s: float | None = None,
) -> Embedding:
    """Request a text embedding.

    Raise `NoServer` if the server cannot be reached. Raise `RequestFailed` if the request fails or
    the response does not contain an embedding.
    """
    outputs = import_transport(interface).infer(endpoint, model, {"text_input": text}, timeout_s)
    values, counts = outputs.get("embedding"), outputs.get("num_input_tokens")
    if not values or not counts:
        raise RequestFailed(
            f"{model} did not return an embedding.",
            why=f"the response contains the outputs {', '.join(outputs)}"
            if outputs
            else "the response does not contain any outputs",
            next_step="read the server's log with `tllm logs`",
        )
    try:
        return Embedding(tuple(map(float, values)), int(counts[0]))
    except (OverflowError, TypeError, ValueError) as error:
        raise RequestFailed(
            f"{model} returned an invalid embedding.",
            why=f"an output is not a number: {error}",
            next_step=f"check that {model} is an embedding model",
        ) from error
