"""Frames between a Triton model and its engine worker.

A frame is four bytes of length, big-endian, then that many bytes of JSON. The model sends

    {"do": "submit", "request": {...GenerationRequest}}
    {"do": "cancel", "id": 7}

and the worker sends, first, one `ready` or `failed`, then one `step` per engine step that had
something to tell (all sequences' new tokens in one frame) and `stats` while it is idle:

    {"is": "ready", "limits": {...EngineLimits}}
    {"is": "failed", "why": "..."}
    {"is": "step", "updates": [...SequenceUpdate as a list...], "stats": {...EngineStats}}

Either side ends the conversation by closing its end of the socket.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any

MAX_FRAME_BYTES = 64 * 1024 * 1024
_MAX_FRAMES = 256
_LENGTH = struct.Struct(">I")


class ProtocolError(Exception):
    """The other side sent something that is no frame."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """`message` as one frame. Raises `ProtocolError` above `MAX_FRAME_BYTES`."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(payload)} bytes is over {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


def read_frame(sock: socket.socket) -> dict[str, Any] | None:
    """The next frame's message, or None when the other side closed between two frames.

    Blocks. Raises `ProtocolError` for a frame that is cut, too long or no JSON object.
    """
    header = _read_exactly(sock, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")
    payload = _read_exactly(sock, length)
    if payload is None:
        raise ProtocolError("the stream ended inside a frame")
    try:
        message = json.loads(payload)
    except ValueError as error:
        raise ProtocolError("a frame holds no JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame holds no JSON object")
    return message


def read_frames(sock: socket.socket) -> list[dict[str, Any]]:
    """The messages of the next frame and of all that are there already; none once it is closed.

    Blocks for the first. Raises `ProtocolError` as `read_frame` does.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    messages: list[dict[str, Any]] = []
    while (message := read_frame(sock)) is not None:
        messages.append(message)
        if len(messages) == _MAX_FRAMES or not poll.poll(0):
            break
    return messages


def _read_exactly(sock: socket.socket, count: int) -> bytes | None:
    """`count` bytes, or None when the stream ends before the first of them."""
    chunks = bytearray()
    while len(chunks) < count:
        chunk = sock.recv(min(count - len(chunks), 1 << 20))
        if not chunk:
            if chunks:
                raise ProtocolError("the stream ended inside a frame")
            return None
        chunks += chunk
    return bytes(chunks)
