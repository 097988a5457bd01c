"""Encode and read the frames between an engine worker and its clients.

The clients are Triton models and gateway processes. A frame is a length (four bytes, big-endian),
followed by that many bytes of JSON. A client sends:

    {"do": "submit", "request": {...GenerationRequest}}
    {"do": "cancel", "id": 7}

The worker's first message is `ready` or `failed`. After each engine step, the worker sends a `step`
message to each client whose requests have updates. The message contains the updates of all requests
from this client; if it would be too long, it is split. At regular intervals, the worker also sends
`stats` to the model that started it, in a `step` message that may contain no updates. These are the
worker's messages:

    {"is": "ready", "limits": {...EngineLimits}, "optional_fields": ["min_p", ...],
     "for_guests": {"excludes_input": false, "num_engines": 1},
     "stages_s": {"load_engine": 1.52, ...}}
    {"is": "failed", "why": "..."}
    {"is": "step", "updates": [...SequenceUpdate as a list...], "stats": {...EngineStats}}

Every message also contains a `number`: each side numbers the frames that it sends on a connection,
starting with 0. A lost, duplicated or reordered frame therefore ends the connection when the next
frame arrives. To make sure that another frame arrives, the worker regularly sends `{"is": "ping"}`,
and the client answers each ping with `{"do": "pong"}`. Peers of earlier versions neither number
their messages nor answer pings.

`optional_fields` names the fields in `OPTIONAL_FIELDS` (engine.py) that the worker supports. A
worker of an earlier version does not send this list, and would fail if a request contained one of
these fields. `for_guests` contains the settings of the model that started the worker. Other clients
use these settings. `stages_s` contains the durations of the worker's startup stages. Workers of
earlier versions do not send `stages_s`.

Either side ends the connection by closing its end of the socket.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

MAX_FRAME_BYTES = 64 * 1024 * 1024
_MAX_FRAMES = 256
_LENGTH = struct.Struct(">I")


class ProtocolError(Exception):
    """Raised if a frame is too long, incomplete or out of order, or if its message is invalid."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """Return `message` as a frame.

    Raise `ProtocolError` if the JSON text of `message` exceeds `MAX_FRAME_BYTES`.
    """
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"the frame is {len(payload)} bytes long, but the maximum is {MAX_FRAME_BYTES} bytes"
        )
    return _LENGTH.pack(len(payload)) + payload


class FrameNumbers:
    """Numbers the frames that one side of a connection sends, and checks received frames."""

    def __init__(self) -> None:
        self._num_sent = self._num_received = 0

    def encode(
        self,
        message: dict[str, Any],
        encode: Callable[[dict[str, Any]], bytes] = encode_frame,
    ) -> bytes:
        """Return `message` as a numbered frame. Frames must be sent in numerical order.

        `encode` converts the numbered message to a frame. If it raises an exception, the number is
        not used.
        """
        frame = encode({**message, "number": self._num_sent})
        self._num_sent += 1
        return frame

    def check(self, message: Mapping[str, Any]) -> None:
        """Raise `ProtocolError` if the message's number is wrong. Accept a missing number."""
        number = message.get("number")
        if number is None:
            return
        if number != self._num_received:
            raise ProtocolError(f"frame {number} arrived instead of frame {self._num_received}")
        self._num_received += 1


def read_frame(sock: socket.socket, numbers: FrameNumbers | None = None) -> dict[str, Any] | None:
    """Wait for a frame and return its message, or None if the peer has closed the socket.

    Raise `ProtocolError` if the frame is incomplete, too long or not a JSON object, or if it has a
    number that is not the next one in `numbers`.
    """
    header = _read_exactly(sock, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"the frame is {length} bytes long, but the maximum is {MAX_FRAME_BYTES} bytes"
        )
    payload = _read_exactly(sock, length)
    if payload is None:
        raise ProtocolError("the stream ended inside a frame")
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame is not valid JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame is not a JSON object")
    if numbers is not None:
        numbers.check(message)
    return message


def read_frames(sock: socket.socket, numbers: FrameNumbers | None = None) -> list[dict[str, Any]]:
    """Wait for a frame and return the messages of all frames that have arrived.

    Return at most `_MAX_FRAMES` messages. Return an empty list if the peer has closed the socket
    and all frames have been read. Raise `ProtocolError` in the same cases as `read_frame`.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    messages: list[dict[str, Any]] = []
    while (message := read_frame(sock, numbers)) is not None:
        messages.append(message)
        if len(messages) == _MAX_FRAMES or not poll.poll(0):
            break
    return messages


def _read_exactly(sock: socket.socket, count: int) -> bytes | None:
    """Return the next `count` bytes, or None if the stream ends before the first of these bytes.

    Raise `ProtocolError` if the stream ends after some of these bytes.
    """
    chunks = bytearray()
    while len(chunks) < count:
        chunk = sock.recv(min(count - len(chunks), 1 << 20))
        if not chunk:
            if chunks:
                raise ProtocolError("the stream ended inside a frame")
            return None
        chunks += chunk
    return bytes(chunks)
