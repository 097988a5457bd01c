"""Implement a minimal asyncio HTTP/2 client that runs many gRPC calls on one connection.

With gRPC's asyncio client, the load generator used about twice as much CPU time per request
(docs/concepts/performance.md). It would therefore send fewer requests per second, and a server on
the same machine would get less CPU time.

Frames follow RFC 9113. The client sets the size of the header compression table to 0. Identical
header blocks therefore always decode to the same headers, and each distinct block has to be decoded
only once.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence

from hpack import Decoder, Encoder, HPACKError

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME_SIZE = 1, 2, 3, 4, 5
_CANCEL = 8
_LARGEST = 2**31 - 1
_DEFAULT_WINDOW = 65535
# Number of received bytes after which the client extends the connection's receive window. This is
# about half of the window, so the server never has to wait.
_WINDOW_UPDATE_AT = 2**30
_FRAME = struct.Struct(">HBBBL")

Headers = dict[str, str]


class ConnectionGone(Exception):
    """The error if the connection was closed or lost, or if the server sent invalid headers."""


class CallReset(Exception):
    """The error of a call that the server reset, with the HTTP/2 error code in `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server reset the stream (HTTP/2 error {code})")
        self.code = code


def encode_headers(headers: Sequence[tuple[str, str]]) -> bytes:
    """Encode headers without the dynamic header table, so that all calls can use the same block."""
    encoder = Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode([(name, value, True) for name, value in headers])
    return block


class Call:
    """One request and the messages in its response.

    `messages` contains the arrival time and the content of each message that has not been read yet.
    Arrival times are values of `time.perf_counter()`. `window` is the number of bytes that the
    server's flow control allows the client to send on this stream.
    """

    def __init__(self, stream: int, window: int) -> None:
        self.stream = stream
        self.messages: deque[tuple[float, bytes]] = deque()
        self.headers: Headers = {}
        self.error: Exception | None = None
        self.is_done = False
        self.window = window
        self._unparsed = b""
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until a message is available or the call has ended."""
        if not self.messages and not self.is_done:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def feed(self, data: bytes, at_s: float) -> None:
        """Add `data`, the part of the response body that was received at `at_s`.

        The body is a sequence of messages. A one-byte flag and a four-byte length precede each
        message. The arrival time of a message is the time when its last byte was received.
        """
        data = self._unparsed + data if self._unparsed else data
        position = 0
        while len(data) >= position + 5:
            end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
            if len(data) < end:
                break
            self.messages.append((at_s, data[position + 5 : end]))
            position = end
        self._unparsed = data[position:]
        if self.messages:
            self._wake()

    def end(self, error: Exception | None = None) -> None:
        if not self.is_done:
            self.is_done, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Http2Connection(asyncio.Protocol):
    """The client side of one HTTP/2 connection."""

    def __init__(self) -> None:
        self.is_open = False
        self._calls: dict[int, Call] = {}
        self._next_stream = 1
        self._unparsed = b""
        self._received_s = 0.0
        self._block: tuple[int, int, bytes] | None = None
        self._decoder = Decoder()
        self._decoder.header_table_size = 0
        self._decoder.max_allowed_table_size = 0
        self._decoded: dict[bytes, Headers] = {}
        self._unsent: deque[tuple[Call, bytes]] = deque()
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._max_frame_size = 16384
        self._max_streams = _LARGEST
        self._stream_waiters: deque[asyncio.Future[None]] = deque()
        self._num_received = 0

    @property
    def has_room(self) -> bool:
        """Return whether a new call can start immediately."""
        return self.is_open and len(self._calls) < self._max_streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True
        settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW, _LARGEST))
        content = b"".join(struct.pack(">HL", name, value) for name, value in settings)
        more = struct.pack(">L", _LARGEST - _DEFAULT_WINDOW)
        transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, content) + _frame(_WINDOW, 0, 0, more))

    async def start(self, block: bytes, body: bytes) -> Call:
        """Send a request with an encoded header block and a complete body.

        Wait while the number of concurrent streams is at the server's limit. Raise
        `ConnectionGone` if the connection is closed. In this case, the request was not sent.
        """
        while self.is_open and not self.has_room:
            await self._wait_for_stream()
        if not self.is_open:
            raise ConnectionGone("the server closed the connection")
        call = Call(self._next_stream, self._stream_window)
        self._next_stream += 2
        if self._next_stream > _LARGEST:
            self.is_open = False
        self._calls[call.stream] = call
        head = _frame(_HEADERS, _END_HEADERS, call.stream, block)
        room = min(self._window, call.window, self._max_frame_size)
        if len(body) <= room and not self._unsent:
            self._window -= len(body)
            self._transport.write(head + _frame(_DATA, _END_STREAM, call.stream, body))
        else:
            self._transport.write(head)
            self._unsent.append((call, body))
            self._send_what_fits()
        return call

    async def _wait_for_stream(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._stream_waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # If this call was cancelled after being woken to use a free stream, wake the next
            # waiter. Otherwise, the stream would remain unused.
            if not waiter.cancelled():
                self._wake_stream_waiter()
            raise

    def cancel(self, call: Call) -> None:
        """Reset the call's stream, unless it has already ended."""
        if self._calls.pop(call.stream, None) is not None and self.is_open:
            reset = struct.pack(">L", _CANCEL)
            self._transport.write(_frame(_RST_STREAM, 0, call.stream, reset))
            self._wake_stream_waiter()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        gone = ConnectionGone(str(exc or "the server closed the connection"))
        self._end_all(list(self._calls.values()), gone)
        self._wake_all_stream_waiters()

    def data_received(self, data: bytes) -> None:
        self._received_s = time.perf_counter()
        data = self._unparsed + data if self._unparsed else data
        position = 0
        while len(data) >= position + 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, position)
            end = position + 9 + (high << 8 | low)
            if len(data) < end:
                break
            self._handle_frame(kind, flags, stream & _LARGEST, data[position + 9 : end])
            position = end
        self._unparsed = data[position:]

    def _handle_frame(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == _DATA:
            self._handle_data(flags, stream, content)
        elif kind in (_HEADERS, _CONTINUATION):
            self._handle_headers(kind, flags, stream, content)
        elif kind == _SETTINGS and not flags & _ACK:
            self._handle_settings(content)
        elif kind == _WINDOW:
            self._handle_window_update(stream, int.from_bytes(content[:4], "big") & _LARGEST)
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, content))
        elif kind == _RST_STREAM:
            self._end(stream, CallReset(int.from_bytes(content[:4], "big")))
        elif kind == _GOAWAY:
            self._handle_goaway(int.from_bytes(content[:4], "big") & _LARGEST)

    def _handle_data(self, flags: int, stream: int, content: bytes) -> None:
        self._num_received += len(content)
        if self._num_received >= _WINDOW_UPDATE_AT:
            more = struct.pack(">L", self._num_received)
            self._transport.write(_frame(_WINDOW, 0, 0, more))
            self._num_received = 0
        if flags & _PADDED:
            content = content[1 : len(content) - content[0]]
        call = self._calls.get(stream)
        if call is not None:
            call.feed(content, self._received_s)
            if flags & _END_STREAM:
                self._end(stream, None)

    def _handle_headers(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == _HEADERS:
            padding = content[0] if flags & _PADDED else 0
            begin = bool(flags & _PADDED) + (5 if flags & _PRIORITY else 0)
            content = content[begin : len(content) - padding]
        elif self._block is not None:
            _, first_flags, before = self._block
            content, flags = before + content, flags | (first_flags & _END_STREAM)
        if not flags & _END_HEADERS:
            self._block = (stream, flags, content)
            return
        self._block = None
        call = self._calls.get(stream)
        if call is None:
            return
        try:
            call.headers = call.headers | self._decode(content)
        except HPACKError as error:
            self._end(stream, ConnectionGone(f"the server sent invalid headers: {error}"))
            return
        if flags & _END_STREAM:
            self._end(stream, None)

    def _decode(self, block: bytes) -> Headers:
        headers = self._decoded.get(block)
        if headers is None:
            headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
            if len(self._decoded) < 64:
                self._decoded[block] = headers
        return headers

    def _handle_settings(self, content: bytes) -> None:
        for name, value in struct.iter_unpack(">HL", content):
            if name == _INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._stream_window
                self._stream_window = value
            elif name == _MAX_FRAME_SIZE:
                self._max_frame_size = value
            elif name == _MAX_STREAMS:
                self._max_streams = value
                self._wake_all_stream_waiters()
        self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        self._send_what_fits()

    def _handle_window_update(self, stream: int, more: int) -> None:
        if not stream:
            self._window += more
        elif stream in self._calls:
            self._calls[stream].window += more
        self._send_what_fits()

    def _handle_goaway(self, last: int) -> None:
        self.is_open = False
        refused = [call for stream, call in self._calls.items() if stream > last]
        self._end_all(refused, ConnectionGone("the server is closing the connection (GOAWAY)"))
        self._wake_all_stream_waiters()

    def _send_what_fits(self) -> None:
        """Send queued request bodies in call order, as far as the flow-control windows allow."""
        waiting: deque[tuple[Call, bytes]] = deque()
        while self._unsent:
            call, body = self._unsent.popleft()
            has_ended = False
            while not has_ended and not call.is_done and call.stream in self._calls:
                room = max(min(self._window, call.window, self._max_frame_size), 0)
                # An empty frame that ends the stream may be sent even if the window is full
                # (RFC 9113, section 6.9).
                if body and not room:
                    waiting.append((call, body))
                    break
                part, body = body[:room], body[room:]
                self._window -= len(part)
                call.window -= len(part)
                has_ended = not body
                flags = _END_STREAM if has_ended else 0
                self._transport.write(_frame(_DATA, flags, call.stream, part))
        self._unsent = waiting

    def _end(self, stream: int, error: Exception | None) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.end(error)
            self._wake_stream_waiter()

    def _end_all(self, calls: Sequence[Call], error: Exception) -> None:
        for call in calls:
            self._end(call.stream, error)

    def _wake_all_stream_waiters(self) -> None:
        while self._stream_waiters:
            self._wake_stream_waiter()

    def _wake_stream_waiter(self) -> None:
        while self._stream_waiters:
            waiter = self._stream_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    length = len(content)
    return _FRAME.pack(length >> 8, length & 255, kind, flags, stream) + content
