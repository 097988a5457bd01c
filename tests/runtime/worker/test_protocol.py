"""Frames are read however the stream is split, and anything else is rejected."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.worker.protocol import (
    MAX_FRAME_BYTES,
    FrameNumbers,
    ProtocolError,
    encode_frame,
    read_frame,
    read_frames,
)

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_MESSAGES = st.dictionaries(st.text(max_size=8), _VALUES, max_size=4)


class SplitStream:
    """A socket that returns `data` in chunks of these sizes, then byte by byte."""

    def __init__(self, data: bytes, sizes: Iterable[int] = ()) -> None:
        self._data = data
        self._sizes = iter(sizes)

    def recv(self, count: int) -> bytes:
        size = min(next(self._sizes, 1), count)
        chunk, self._data = self._data[:size], self._data[size:]
        return chunk


def _read_all(stream: Any) -> list[dict[str, Any]]:
    return list(iter(lambda: read_frame(stream), None))


@given(st.lists(_MESSAGES, max_size=4), st.lists(st.integers(1, 50), max_size=20))
def test_reads_frames_however_the_stream_is_split(
    messages: list[dict[str, Any]], sizes: list[int]
) -> None:
    stream = SplitStream(b"".join(encode_frame(each) for each in messages), sizes)
    assert _read_all(stream) == messages


@pytest.mark.parametrize("length", range(1, len(encode_frame({"do": "cancel"}))))
def test_rejects_a_stream_that_ends_inside_a_frame(length: int) -> None:
    with pytest.raises(ProtocolError, match="the stream ended inside a frame"):
        read_frame(SplitStream(encode_frame({"do": "cancel"})[:length]))  # type: ignore[arg-type]


def test_stream_may_end_between_frames() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode_frame({"do": "cancel"}))
        theirs.close()
        assert (read_frame(ours), read_frame(ours)) == ({"do": "cancel"}, None)


def test_rejects_a_length_over_the_limit_without_reading() -> None:
    stream = SplitStream(struct.pack(">I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match=f"the frame is {MAX_FRAME_BYTES + 1} bytes long, but"):
        read_frame(stream)  # type: ignore[arg-type]


def test_rejects_a_message_over_the_limit() -> None:
    with pytest.raises(ProtocolError, match=f"the maximum is {MAX_FRAME_BYTES} bytes"):
        encode_frame({"why": "x" * MAX_FRAME_BYTES})


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "a frame is not valid JSON"),
        (b"{", "a frame is not valid JSON"),
        (b'"\xff"', "a frame is not valid JSON"),
        (b"[" * 100_000, "a frame is not valid JSON"),
        (b"[]", "a frame is not a JSON object"),
        (b"7", "a frame is not a JSON object"),
        (b"null", "a frame is not a JSON object"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_rejects_a_payload_that_is_not_a_json_object(payload: bytes, why: str) -> None:
    stream = SplitStream(struct.pack(">I", len(payload)) + payload)
    with pytest.raises(ProtocolError, match=f"^{why}$"):
        read_frame(stream)  # type: ignore[arg-type]


def test_reads_all_available_frames_and_waits_for_the_next() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        theirs.sendall(encode_frame({"n": 1}) + encode_frame({"n": 2}))
        assert read_frames(ours) == [{"n": 1}, {"n": 2}]
        theirs.sendall(encode_frame({"n": 3}))
        theirs.shutdown(socket.SHUT_WR)
        assert (read_frames(ours), read_frames(ours)) == ([{"n": 3}], [])


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 2, 1)], ids=str)
def test_rejects_frames_that_are_lost_duplicated_or_reordered(order: tuple[int, ...]) -> None:
    numbers = FrameNumbers()
    frames = [numbers.encode({"do": "pong"}) for _ in range(3)]
    stream = SplitStream(b"".join(frames[each] for each in order))
    received = FrameNumbers()
    with pytest.raises(ProtocolError, match=r"^frame \d arrived instead of frame \d$"):
        for _ in order:
            read_frame(stream, received)  # type: ignore[arg-type]


def test_message_that_is_too_long_uses_no_number() -> None:
    numbers = FrameNumbers()
    with pytest.raises(ProtocolError):
        numbers.encode({"why": "x" * MAX_FRAME_BYTES})
    stream = SplitStream(numbers.encode({"do": "pong"}))
    assert read_frame(stream, FrameNumbers()) == {"do": "pong", "number": 0}  # type: ignore[arg-type]
