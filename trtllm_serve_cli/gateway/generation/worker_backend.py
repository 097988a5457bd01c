"""Send requests directly to the engine worker of a Triton model on this machine.

After each engine step, the worker sends one frame with the new tokens of all sequences that this
gateway process has requested. The direct connection bypasses Triton's Python stub, which sends at
most about 4,500 responses per second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from trtllm_serve_cli.gateway.errors import ApiError, invalid, unavailable
from trtllm_serve_cli.gateway.generation.backend import OnUpdate
from trtllm_serve_cli.runtime.engine import (
    OPTIONAL_FIELDS,
    EngineLimits,
    GenerationRequest,
    SequenceUpdate,
    merge_updates,
)
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.step_decoder import StepDecoder
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer
from trtllm_serve_cli.runtime.worker.abstract_socket import connect
from trtllm_serve_cli.runtime.worker.protocol import MAX_FRAME_BYTES, FrameNumbers, ProtocolError

_RECONNECT_S = 0.2
_LENGTH_BYTES = 4
_log = logging.getLogger(__name__)


class WorkerBackend:
    """A connection to an engine worker. The backend reconnects if the connection is lost.

    `find_socket` returns the name of the worker's abstract socket, or None if no worker accepts
    connections.
    """

    def __init__(
        self,
        find_socket: Callable[[], str | None],
        tokenizer: Tokenizer,
        reconnect_s: float = _RECONNECT_S,
    ) -> None:
        self._find_socket = find_socket
        self._reconnect_s = reconnect_s
        self._decoders = {
            skips: StepDecoder(
                lambda sequences, skips=skips: tokenizer.decode_all(  # type: ignore[misc]
                    sequences, skip_special_tokens=skips
                ),
                tokenizer.unfinished_ids,
            )
            for skips in (True, False)
        }
        self._handlers: dict[int, OnUpdate] = {}
        # Maps each request id to the number of unfinished sequences.
        self._open_sequences: dict[int, int] = {}
        self._ids = itertools.count(1)
        self._connection: _WorkerConnection | None = None
        self._task = asyncio.create_task(self._keep_connected())
        self.limits: EngineLimits | None = None
        # The number of engines of the worker's model.
        self.num_engines = 1
        # The optional request fields that the connected worker does not support.
        self._unknown_fields: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self.limits is not None

    @property
    def accepts_adapters(self) -> bool:
        return True

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        if self._connection is None or self.limits is None:
            raise unavailable("The engine worker is not available. Retry the request.")
        request = GenerationRequest(id=next(self._ids), **fields)
        message = request.to_message()
        if "trace_parent" in self._unknown_fields:
            message.pop("trace_parent", None)
        if unknown := sorted(self._unknown_fields & message.keys()):
            raise invalid(
                f"The engine worker of this model does not support {', '.join(unknown)}, because "
                "the model uses the runtime of an earlier version of tllm. Ask the operator "
                "to run `tllm update`.",
                code="unsupported_parameter",
            )
        self._connection.send({"do": "submit", "request": message})
        self._handlers[request.id] = on_update
        self._open_sequences[request.id] = request.num_return_sequences
        return request.id

    def cancel(self, request_id: int) -> None:
        if self._handlers.pop(request_id, None) is None:
            return
        del self._open_sequences[request_id]
        if self._connection is not None:
            self._connection.send({"do": "cancel", "id": request_id})

    def open_decoder(
        self, request_id: int, sequence_index: int, *, skips_special_tokens: bool
    ) -> StreamDecoder:
        return self._decoders[skips_special_tokens].open_stream(request_id, sequence_index)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.abort()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (name := self._find_socket()) is not None:
                connection = _WorkerConnection(self._receive)
                with contextlib.suppress(OSError):
                    # Connect with the standard library: uvloop does not support abstract sockets.
                    sock = connect(name, timeout_s=0)
                    await loop.create_unix_connection(lambda: connection, sock=sock)  # noqa: B023
                    self._connection = connection
                    try:
                        await connection.lost.wait()
                    finally:
                        connection.abort()
                        self._connection = self.limits = None
                    why = connection.failure or "the connection to the engine worker was lost"
                    self._fail_all(f"{why}; retry the request")
            await asyncio.sleep(self._reconnect_s)

    def _fail_all(self, why: str) -> None:
        handlers, self._handlers = self._handlers, {}
        self._open_sequences.clear()
        for request_id, handler in handlers.items():
            handler(SequenceUpdate(request_id, error=why))

    def _receive(self, messages: list[dict[str, Any]]) -> None:
        """Handle a batch of messages and merge the updates of each sequence.

        Raise `ProtocolError` if a message is invalid.
        """
        entries = []
        try:
            for message in messages:
                if message["is"] == "ready":
                    self.limits = EngineLimits(**message["limits"])
                    self.num_engines = int(message.get("for_guests", {}).get("num_engines", 1))
                    known = message.get("optional_fields", ())
                    self._unknown_fields = frozenset(OPTIONAL_FIELDS).difference(known)
                elif message["is"] == "step":
                    entries += message["updates"]
            updates = [SequenceUpdate.from_wire(entry) for entry in entries]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a message is invalid: {type(error).__name__}: {error}") from error
        if len(messages) > 1:
            updates = merge_updates(updates)
        for decoder in self._decoders.values():
            decoder.decode_ahead(updates)
        for update in updates:
            self._deliver(update)

    def _deliver(self, update: SequenceUpdate) -> None:
        request_id = update.request_id
        handler = self._handlers.get(request_id)
        if handler is None:
            return
        if update.finish_reason is not None:
            self._open_sequences[request_id] -= 1
        if update.error is not None or not self._open_sequences[request_id]:
            del self._handlers[request_id], self._open_sequences[request_id]
        handler(update)


def _encode_frame(message: dict[str, Any]) -> bytes:
    """Encode a message as a frame for the worker. Raise `ApiError` (413) if the frame is too long.

    msgspec encodes a prompt's token ids about five times as fast as `protocol.encode_frame`, which
    uses the standard library.
    """
    payload = msgspec.json.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise ApiError(
            413,
            f"The request is {len(payload)} bytes long, but the maximum is {MAX_FRAME_BYTES} "
            "bytes. Shorten the prompt.",
        )
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class _WorkerConnection(asyncio.Protocol):
    """A socket connection to an engine worker. `receive` is called with each batch of messages.

    If a frame is invalid, `failure` is set to the reason and the connection is closed.
    """

    def __init__(self, receive: Callable[[list[dict[str, Any]]], None]) -> None:
        self.lost = asyncio.Event()
        self.failure = ""
        self._receive = receive
        self._numbers = FrameNumbers()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of `asyncio.Transport`, but has the same methods.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            if messages := self._take_messages():
                self._receive(messages)
        except ProtocolError as error:
            self.failure = f"the connection to the engine worker failed ({error})"
            _log.error(self.failure)
            self.abort()

    def _take_messages(self) -> list[dict[str, Any]]:
        """Remove complete frames from the buffer, answer pings, and return the other messages."""
        messages = []
        start, size = 0, len(self._buffer)
        while size - start >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[start : start + _LENGTH_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(
                    f"a frame is {length} bytes long, but the maximum is {MAX_FRAME_BYTES} bytes"
                )
            end = start + _LENGTH_BYTES + length
            if end > size:
                break
            message = self._decode(memoryview(self._buffer)[start + _LENGTH_BYTES : end])
            self._numbers.check(message)
            if message.get("is") == "ping":
                self.send({"do": "pong"})
            else:
                messages.append(message)
            start = end
        if start:
            del self._buffer[:start]
        return messages

    def _decode(self, payload: memoryview) -> dict[str, Any]:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"a frame is not a valid JSON object: {error}") from error

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def send(self, message: dict[str, Any]) -> None:
        assert self._transport is not None
        self._transport.write(self._numbers.encode(message, _encode_frame))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
