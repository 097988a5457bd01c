"""Encode HTTP/2 frames."""

from __future__ import annotations

import struct

ACK, END_STREAM, END_HEADERS = 1, 1, 4
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + struct.pack(">BBL", kind, flags, stream) + content
